"""`teaagentd inbox` and `teaagentd outbox`: what waits, what was set aside, what becomes of it."""

from __future__ import annotations

import click
import orjson

from teaagentd.cli.client import Client, Payload
from teaagentd.cli.console import put
from teaagentd.cli.desk import desk, first_words, items, put_lines, sure
from teaagentd.cli.exits import Failure
from teaagentd.cli.options import current_home, home_option, run_async

_LIMIT = click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, help="How many at most, the newest first."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
_IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
@home_option
def inbox() -> None:
    """Messages that wait for an answer, or were set aside."""


@inbox.command(name="list")
@_LIMIT
@_JSON
@home_option
def list_inbox(limit: int, as_json: bool) -> None:
    """List them, the newest first."""
    entries = _list("/v1/inbox", "messages", limit)
    if as_json:
        put(orjson.dumps(entries).decode())
        return
    if not entries:
        put_lines("nothing waits, and nothing was set aside")
    for entry in entries:
        put_lines(
            f"{entry.get('id')}  {entry.get('state')}  {entry.get('accepted_at')}  "
            f"{entry.get('session_key')}  {first_words(entry.get('content'))}"
        )


@inbox.command(name="retry")
@_IDS
@_JSON
@home_option
def retry_inbox(ids: tuple[int, ...], as_json: bool) -> None:
    """Have messages that were set aside answered after all."""
    _each(ids, "inbox", "retry", "{id} is taken up again, as message {answer[id]}", as_json)


@inbox.command(name="drop")
@_IDS
@_YES
@_JSON
@home_option
def drop_inbox(ids: tuple[int, ...], yes: bool, as_json: bool) -> None:
    """Leave messages unanswered.

    Who sent one that still waits is told so, in one sentence. One that was set aside is listed no
    longer; it stays in its session.
    """
    sure(f"Leave {len(ids)} messages unanswered?", yes=yes)
    _each(ids, "inbox", "drop", "{id} is dropped", as_json)


@click.group()
@home_option
def outbox() -> None:
    """Texts that wait to be delivered, or were given up."""


@outbox.command(name="list")
@_LIMIT
@_JSON
@home_option
def list_outbox(limit: int, as_json: bool) -> None:
    """List them, the newest first."""
    entries = _list("/v1/outbox", "texts", limit)
    if as_json:
        put(orjson.dumps(entries).decode())
        return
    if not entries:
        put_lines("nothing waits, and nothing was given up")
    for entry in entries:
        sent = f", {entry.get('sent')} of {entry.get('parts')} sent" if entry.get("parts") else ""
        reason = f"  ({entry.get('reason')}{sent})" if entry.get("reason") else sent
        put_lines(
            f"{entry.get('id')}  {entry.get('state')}  {entry.get('created_at')}  "
            f"{entry.get('session_key')}  {first_words(entry.get('content'))}{reason}"
        )


@outbox.command(name="retry")
@_IDS
@_JSON
@home_option
def retry_outbox(ids: tuple[int, ...], as_json: bool) -> None:
    """Have texts that were given up delivered after all.

    They go on with the first part that is not known to have arrived; one whose outcome is unknown
    is marked as a possible repeat.
    """
    _each(ids, "outbox", "retry", "{id} is to be delivered again, by {answer[channel]}", as_json)


@outbox.command(name="drop")
@_IDS
@_YES
@_JSON
@home_option
def drop_outbox(ids: tuple[int, ...], yes: bool, as_json: bool) -> None:
    """Deliver texts no more; they stay readable in their sessions."""
    sure(f"Deliver {len(ids)} texts no more?", yes=yes)
    _each(ids, "outbox", "drop", "{id} is dropped", as_json)


def _list(path: str, key: str, limit: int) -> list[Payload]:
    home = current_home()

    async def read() -> list[Payload]:
        async with desk(home) as client:
            return list(items(await client.get(path, limit=str(limit)), key))

    return run_async(read)


def _each(ids: tuple[int, ...], queue: str, action: str, line: str, as_json: bool) -> None:
    """Do something with each, and tell for which it was done: a `line` for each, or JSON. Raises
    `Failure` then if it could not be done for all."""
    home = current_home()
    refused: list[str] = []

    async def act(client: Client, one: int) -> Payload | None:
        try:
            return await client.act("POST", f"/v1/{queue}/{one}/{action}", {})
        except Failure as error:
            if len(ids) == 1:
                raise
            refused.append(f"{one}: {error}")
            return None

    async def act_all() -> list[tuple[int, Payload]]:
        async with desk(home) as client:
            done = [(one, await act(client, one)) for one in dict.fromkeys(ids)]
        return [(one, answer) for one, answer in done if answer is not None]

    done = run_async(act_all)
    if as_json:
        put(orjson.dumps([answer for _, answer in done]).decode())
    else:
        put_lines(*(line.format(id=one, answer=answer) for one, answer in done))
    if refused:
        raise Failure("; ".join(refused))
