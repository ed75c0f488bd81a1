"""Finding the daemon of a home, or being it for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from teaagentd.cli.client import Client, NoDaemon
from teaagentd.cli.console import Say
from teaagentd.errors import HomeLocked
from teaagentd.home import Home

_STARTING_S = 15.0
"""How long another process may hold the home before it answers, or after it stopped to."""
_LOOK_S = 0.1


@asynccontextmanager
async def attached(home: Home, say: Say) -> AsyncIterator[Client]:
    """A client of the home's daemon. With none running, this process is the daemon until the
    context ends: then it takes nothing new, finishes what it can and parks the rest. Raises what
    `Daemon.open` raises."""
    async with Client(home.socket) as client:
        deadline = anyio.current_time() + _STARTING_S
        while True:
            if await _answers(client):
                yield client
                return
            try:
                async with _daemon_here(home, say):
                    yield client
                return
            except HomeLocked:
                if anyio.current_time() > deadline:
                    raise
            await anyio.sleep(_LOOK_S)


async def _answers(client: Client) -> bool:
    try:
        await client.status()
    except NoDaemon:
        return False
    return True


def _daemon_here(home: Home, say: Say) -> AbstractAsyncContextManager[None]:
    # Half a second of imports, which a mere client does without.
    from teaagentd.cli.in_process import daemon_here

    return daemon_here(home, say)
