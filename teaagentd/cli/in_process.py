"""The daemon inside a command: for as long as someone talks and no other process serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from teaagentd.cli.console import Say
from teaagentd.cli.exits import NO_DAEMON, Failure
from teaagentd.cli.first_start import first_start
from teaagentd.cli.logging import keep_logging
from teaagentd.cli.options import unwrapped
from teaagentd.config import Loaded, load_settings
from teaagentd.daemon import Daemon
from teaagentd.home import Home

_BACKGROUND_S = 30.0


@asynccontextmanager
async def daemon_here(home: Home, say: Say) -> AsyncIterator[None]:
    """A daemon that serves the home's socket from this process, until the context ends. Raises
    `HomeLocked` if another process has the home. If someone else stops it, what is done within the
    context is cancelled, and it ends with a `Failure`."""
    first_start(home, say)
    loaded = load_settings(home)
    tell(loaded, say)
    home.create()
    settings = loaded.settings
    relog = keep_logging(home.log_file)
    relog(settings)
    told_to_stop = True
    async with AsyncExitStack() as stack:
        with loaded.placed(), unwrapped():
            daemon = await stack.enter_async_context(Daemon.open(settings, on_settings=relog))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        ended = anyio.Event()

        async def serve(*, task_status: TaskStatus[None]) -> None:
            try:
                await daemon.serve(task_status=task_status)
            finally:
                ended.set()
            tasks.cancel_scope.cancel()

        await tasks.start(serve)
        try:
            yield
            told_to_stop = False
        finally:
            with anyio.CancelScope(shield=True):
                await _end(daemon, ended, say)
    if told_to_stop:
        raise Failure(
            "the daemon, which was this process, was told to stop; what it had accepted and not "
            "answered is answered at its next start",
            NO_DAEMON,
        )


async def _end(daemon: Daemon, ended: anyio.Event, say: Say) -> None:
    """Drain, saying what for; an interrupt meanwhile forces it."""
    if not ended.is_set():
        await daemon.loop.wait_background(_BACKGROUND_S)
    async with anyio.create_task_group() as ending:
        ending.start_soon(daemon.watch_signals)
        daemon.request_stop()
        for line in daemon.loop.waiting_for():
            say(f"Finishing {line}. Interrupt to leave now and have it done at the next start.")
        await ended.wait()
        ending.cancel_scope.cancel()


def tell(loaded: Loaded, say: Say) -> None:
    """What a person should hear of the settings before they are used."""
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if loaded.choice is not None:
        say(f"No provider is configured. {loaded.choice.reason}")
