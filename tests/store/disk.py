"""Disks that fill up or fail while the store is open, and are mended again.

python -m tests.store.disk PATH      what `survive` does, on a disk that fails for this process
"""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from teaagentd.errors import StoreUnavailable
from teaagentd.store import Store
from teaagentd.store.values import Closed
from tests.store.steps import KEY, ManualClock, close_or_fold, database, said, started

LARGE = "x" * 60_000
Act = Callable[[], None]


async def survive(store: Store, path: Path, break_disk: Act, mend_disk: Act) -> None:
    """A message that is not kept says so, nothing of it stays, and all goes on afterwards."""
    turn = await started(store, "before")
    break_disk()
    for _ in range(2):
        problem = await refused(store, LARGE)
        assert "was not kept" in str(problem)
    with pytest.raises(StoreUnavailable, match=r"T4\.close_or_fold was not kept"):
        await close_or_fold(store, turn.turn_id, LARGE)
    assert len(await store.running_turns()) == 1
    assert [text.content for text in await store.replies(KEY, after=0)] == []
    mend_disk()
    accepted = await store.accept(said("after"))
    assert accepted.id == turn.claimed[0].id + 1
    assert isinstance(await close_or_fold(store, turn.turn_id, "done", may_fold=False), Closed)
    assert [text.content for text in await store.replies(KEY, after=0)] == ["done"]
    assert [row.message.content for row in await store.pending_rows(KEY)] == ["after"]
    with database(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def refused(store: Store, content: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        await store.accept(said(content))
    return caught.value


async def limit_pages(store: Store, extra: int) -> None:
    """Let the database grow by no more than `extra` pages: SQLite then says that the disk is
    full. 2**30 lifts the limit."""

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {min(pages + extra, 2**30)}")

    await store._database.write("T1.park", limit)


def mounted(folder: Path) -> bool:
    """Mount a small file system of its own at `folder`; False where we may not."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0


async def _main(path: Path) -> None:
    """Break the disk by a limit on the size of files, which makes writing fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = await Store.open(path, clock=ManualClock())

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    # The log is as large as this: a small commit may still fit, a large one does not.
    log = path.with_name("state.db-wal")
    await survive(
        store,
        path,
        lambda: limit(log.stat().st_size + 16_384),
        lambda: limit(hard),
    )
    await store.aclose()
    print("survived")


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
