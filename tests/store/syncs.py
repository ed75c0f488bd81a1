"""Commits a number of messages, one after the other, for whoever counts the syncs.

python -m tests.store.syncs PATH NUMBER
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from teaagentd.store import Store
from tests.store.steps import ManualClock, said


async def commit(path: Path, number: int) -> None:
    store = await Store.open(path, clock=ManualClock(), max_pending=number)
    for message in range(number):
        await store.accept(said(f"m{message}"))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(commit(Path(sys.argv[1]), int(sys.argv[2])))
