"""The daemon's desk, beside a running daemon or without one: the same requests either way."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import quote

import click

from teaagentd.cli.client import Client, NoDaemon, Payload
from teaagentd.cli.console import harmless, put, say
from teaagentd.cli.exits import Failure
from teaagentd.errors import ConfigError
from teaagentd.home import Home

_FIRST_WORDS = 60


@asynccontextmanager
async def desk(home: Home) -> AsyncIterator[Client]:
    """A client of the home's daemon; without one, of its store, which this process then holds.
    What is done there is taken up by the next start. Raises `HomeLocked`, and `Failure` where
    nothing is kept yet."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(home.socket))
        try:
            await client.status()
        except NoDaemon:
            client = await stack.enter_async_context(_without_daemon(home))
        yield client


@asynccontextmanager
async def _without_daemon(home: Home) -> AsyncIterator[Client]:
    if not home.state_file.exists():
        raise Failure(f"{home.root}: nothing is kept there yet")
    # Imported here: it takes a while, and a running daemon has done it.
    import httpx2

    from teaagentd.abc import SystemClock
    from teaagentd.cli.logging import keep_logging
    from teaagentd.cli.options import unwrapped
    from teaagentd.config import ProviderSection, Settings, load_settings
    from teaagentd.daemon import Daemon
    from teaagentd.plugins import load_chain
    from teaagentd.web.app import create_app
    from teaagentd.web.waits import LongWaits

    # No model is asked and no channel served, so a broken configuration is no hindrance.
    settings = Settings(home=home.root, provider=ProviderSection(type="local"))
    with suppress(ConfigError):
        kept = load_settings(home).settings
        kept = kept.model_copy(update={"channels": {}, "tools": settings.tools})
        load_chain(kept, clock=SystemClock(), on_progress=None)
        settings = kept
    keep_logging(home.log_file)(settings)
    with unwrapped():
        async with Daemon.open(settings) as daemon:
            app = create_app(daemon, LongWaits())
            transport = httpx2.ASGITransport(app=app)
            async with Client(home.socket, transport=transport) as client:
                yield client


async def pages(client: Client, path: str, entries: str, **query: str) -> AsyncIterator[Payload]:
    """Every entry of a paged list, page after page."""
    cursor = "after" if "after" in query else "before"
    while True:
        page = await client.get(path, **query)
        for entry in items(page, entries):
            yield entry
        following = page.get("next")
        if following is None:
            return
        query[cursor] = str(following)


def items(page: Payload, key: str) -> Iterator[Payload]:
    """The objects of a list in an answer."""
    value = page.get(key)
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item


def session_path(key: object, behind: str = "") -> str:
    return f"/v1/sessions/{quote(str(key), safe='')}{behind}"


def put_lines(*lines: str) -> None:
    """Lines for a person; none of what they quote can steer the terminal."""
    for line in lines:
        put(harmless(line))


def first_words(text: object) -> str:
    """The beginning of a text, on one line."""
    words = " ".join(str(text).split())
    return words if len(words) <= _FIRST_WORDS else words[: _FIRST_WORDS - 1] + "…"


def say_what_is_left(home: Home) -> None:
    """Name the files of the home that no deletion reaches, if there are any."""
    root = home.state_file.parent
    found = [*sorted(root.glob(f"{home.state_file.name}.before-*")), home.terminal / "history"]
    if left := [str(path) for path in found if path.exists()]:
        say(f"What was said may stand in {', '.join(left)}, too; remove what you need no more.")


def sure(question: str, *, yes: bool) -> None:
    """Go on only if the person at the keyboard agrees, or `--yes` was given. Raises `Failure`."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise Failure(f"{question} Nothing was done: say --yes to have it done without asking")
    if not click.confirm(harmless(question), default=False, err=True):
        raise Failure("nothing was done")
