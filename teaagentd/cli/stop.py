"""`teaagentd stop`: end the daemon, or what one conversation is at."""

from __future__ import annotations

import time

import anyio
import click

from teaagentd.cli.client import Client, NoDaemon
from teaagentd.cli.console import put, say
from teaagentd.cli.exits import OK, TRY_LATER, Failure
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.home import Home
from teaagentd.store.lock import is_held
from teaagentd.types import SessionKey

_LOOK_S = 0.1


@click.command()
@click.option(
    "--session",
    callback=session_key,
    metavar="KEY",
    help="Stop only what this conversation is at; the daemon goes on.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="S",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="How many seconds the daemon may take to finish.",
)
@home_option
def stop(session: SessionKey | None, wait_s: float) -> int:
    """Stop the daemon, or one conversation's work.

    It finishes what is being said and sent, keeps the rest for its next start, and is gone when
    this command ends.
    """
    home = current_home()
    if session is not None:
        return run_async(lambda: _stop_session(home, session))
    return run_async(lambda: _stop_daemon(home, wait_s))


async def _stop_session(home: Home, key: SessionKey) -> int:
    async with Client(home.socket) as client:
        answer = await client.stop_session(key)
    put("Stopped." if answer.get("stopped") else "Nothing was running there.")
    return OK


async def _stop_daemon(home: Home, wait_s: float) -> int:
    async with Client(home.socket) as client:
        for line in await client.shut_down():
            say(f"Finishing: {line}")
        end = time.monotonic() + wait_s
        while await _still_there(client, home):
            if time.monotonic() > end:
                raise Failure(
                    f"the daemon has not finished within {wait_s:g} s; it goes on ending", TRY_LATER
                )
            await anyio.sleep(_LOOK_S)
    put("Stopped.")
    return OK


async def _still_there(client: Client, home: Home) -> bool:
    """Whether the daemon answers or holds its home. The lock is looked at last, as looking could
    get in the way of a new start."""
    try:
        await client.status()
    except NoDaemon:
        return is_held(home.root)
    return True
