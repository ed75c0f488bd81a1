"""`teaagentd sessions`: what was said, to be listed, read, searched, exported and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import orjson

from teaagentd.cli.client import Payload
from teaagentd.cli.console import put, say
from teaagentd.cli.desk import (
    desk,
    first_words,
    items,
    pages,
    put_lines,
    say_what_is_left,
    session_path,
    sure,
)
from teaagentd.cli.exits import Failure
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.cli.transcripts import as_json_lines, as_markdown, write_new
from teaagentd.transcript import clean_text
from teaagentd.types import SessionKey

Format = Literal["markdown", "json"]

_KEY = click.argument("key", callback=session_key)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
_LIMIT = click.option("--limit", type=click.IntRange(1), default=100, help="How many at most.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
@home_option
def sessions() -> None:
    """List, read, search, export and delete conversations."""


@sessions.command(name="list")
@_LIMIT
@_JSON
@home_option
def list_(limit: int, as_json: bool) -> None:
    """List the conversations, the latest active first."""
    home = current_home()

    async def read() -> list[Payload]:
        found: list[Payload] = []
        async with desk(home) as client:
            size = str(min(limit, 1000))
            async for entry in pages(client, "/v1/sessions", "sessions", limit=size):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    entries = run_async(read)
    if as_json:
        put(orjson.dumps(entries).decode())
        return
    for entry in entries:
        waiting = f", {entry.get('pending')} waiting" if entry.get("pending") else ""
        work = ", at work" if entry.get("running_turn_id") else ""
        put_lines(
            f"{entry.get('session_key')}  {entry.get('messages')} messages{waiting}{work}, "
            f"active {entry.get('active_at')}"
        )


@sessions.command()
@_KEY
@_LIMIT
@_JSON
@home_option
def show(key: SessionKey, limit: int, as_json: bool) -> None:
    """Print the newest messages of a conversation."""
    home = current_home()

    async def read() -> list[Payload]:
        found: list[Payload] = []
        async with desk(home) as client:
            path, before = session_path(key), "0"
            while len(found) < limit:
                size = str(min(limit - len(found), 1000))
                page = await client.get(path, limit=size, before=before)
                found[:0] = items(page, "messages")
                if page.get("next") is None:
                    break
                before = str(page["next"])
        return found

    messages = run_async(read)
    if as_json:
        put(orjson.dumps(messages).decode())
    else:
        put_lines(*(as_markdown(message) for message in messages))


@sessions.command()
@click.argument("text")
@_LIMIT
@_JSON
@home_option
def search(text: str, limit: int, as_json: bool) -> None:
    """Find messages that hold TEXT, in upper or lower case, the newest first.

    Exit code 1: there is none.
    """
    home = current_home()

    async def look() -> int:
        count = 0
        async with desk(home) as client:
            size = str(min(limit, 1000))
            async for entry in pages(
                client, "/v1/search", "messages", q=clean_text(text), limit=size
            ):
                count += 1
                if as_json:
                    put(("[" if count == 1 else ",") + orjson.dumps(entry).decode())
                else:
                    put_lines(_line(entry, text))
                if count == limit:
                    break
        return count

    count = run_async(look)
    if as_json:
        put("]" if count else "[]")
    if not count:
        raise Failure("nothing was found")


def _line(entry: Payload, text: str) -> str:
    """A message that was found, with what stands about the place."""
    message = entry.get("message")
    content = str(message.get("content")) if isinstance(message, dict) else ""
    around = first_words(_around(content, text))
    return f"{entry.get('created_at')}  {entry.get('session_key')}  {around}"


def _around(content: str, text: str) -> str:
    """What stands about the place that was looked for."""
    place = max(content.casefold().find(text.casefold()) - 20, 0)
    return ("…" if place else "") + content[place:]


@sessions.command()
@_KEY
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "json"]),
    default="markdown",
    help="For people, or a JSON object on each line.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file, instead of standard output.",
)
@home_option
def export(key: SessionKey, form: Format, output: Path | None) -> None:
    """Print a whole conversation, from its beginning."""
    home = current_home()
    write = as_markdown if form == "markdown" else as_json_lines

    async def copy() -> None:
        async with desk(home) as client:
            messages = pages(client, session_path(key), "messages", after="0", limit="500")
            if output is None:
                async for message in messages:
                    put(write(message))
            else:
                await write_new(output, messages, write)
                say(f"{output} is written.")

    run_async(copy)


@sessions.command()
@_KEY
@_YES
@click.option("--json", "as_json", is_flag=True, help="Print what went as JSON.")
@home_option
def delete(key: SessionKey, yes: bool, as_json: bool) -> None:
    """Delete a conversation: every word of it, also in the file.

    That it took place, and what it cost, stays countable. A message that is sent again is not taken
    for a new one.
    """
    home = current_home()

    async def count() -> Payload:
        async with desk(home) as client:
            return await client.act("DELETE", session_path(key, "?only_count=true"))

    async def remove() -> Payload:
        async with desk(home) as client:
            return await client.act("DELETE", session_path(key))

    sure(f"Delete {key}: {told(run_async(count))}?", yes=yes)
    removed = run_async(remove)
    if as_json:
        put(orjson.dumps(removed).decode())
    else:
        put_lines(f"{key} is deleted: {told(removed)}.")
    say_what_is_left(home)


def told(removed: Payload) -> str:
    """What a deletion comes to, in words."""
    waiting = f", {removed.get('waiting')} of them waiting" if removed.get("waiting") else ""
    return (
        f"{removed.get('messages')} messages of transcripts, {removed.get('inbox')} accepted"
        f"{waiting}, {removed.get('outbox')} texts"
    )
