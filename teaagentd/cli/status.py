"""`teaagentd status`: what the daemon is doing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from teaagentd.cli.client import Client, Payload
from teaagentd.cli.console import harmless, put
from teaagentd.cli.exits import OK
from teaagentd.cli.options import current_home, home_option, run_async


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as one JSON object.")
@home_option
def status(as_json: bool) -> int:
    """Show what the daemon is doing.

    Exit code 69: none is running.
    """
    home = current_home()

    async def look() -> Payload:
        async with Client(home.socket) as client:
            return await client.status()

    found = run_async(look)
    if as_json:
        put(orjson.dumps(found).decode())
    else:
        _print(found)
    return OK


def _print(found: Payload) -> None:
    console = Console(highlight=False)
    console.print(
        f"teaagentd {found.get('version')}, process {found.get('pid')}, running for "
        f"{_age(found.get('uptime_s'), 1)}{', ending now' if found.get('draining') else ''}",
        markup=False,
    )
    lines = Table.grid(padding=(0, 2))
    for name, text in _lines(found):
        lines.add_row(Text(name, style="dim"), Text(harmless(text)))
    console.print(lines)
    for alert in _items(found, "alerts"):
        console.print(Text(harmless(f"attention  {alert.get('text')}"), style="bold"))
    for table in (_turns(found), _channels(found)):
        if table.row_count:
            console.print(table)


def _lines(found: Payload) -> Iterator[tuple[str, str]]:
    provider, slots = _part(found, "provider"), _part(found, "slots")
    if problem := _part(found, "configuration").get("problem"):
        yield "settings", f"those of before stay in force, as the file cannot be used: {problem}"
    yield "answers", f"{provider.get('name')}, {provider.get('model')}"
    for one in _items(found, "providers"):
        if (rests_s := one.get("rests_s")) is not None:
            yield "rests", f"{one.get('name')} for {_age(rests_s, 1)}: {one.get('reason')}"
    for one in _items(found, "spending"):
        if isinstance(spent := one.get("spent"), int | float):
            yield "spent", f"{spent:,.6g} of {one.get('name')} = {one.get('limit'):,.6g}"
    yield (
        "turns",
        f"{slots.get('held')} of {slots.get('limit')} at work, {slots.get('waiting')} waiting for "
        f"a slot, {slots.get('parked')} waiting for others",
    )
    for name, what in (("inbox", "to be answered"), ("outbox", "to be delivered")):
        queue = _part(found, name)
        oldest = queue.get("oldest_age_ms")
        age = "" if oldest is None else f", the oldest for {_age(oldest, 1000)}"
        yield name, f"{queue.get('depth')} {what}{age}"
    if found.get("dead_rows"):
        yield "dead", f"{found['dead_rows']} messages whose turn failed for good"
    if found.get("dead_letters"):
        yield "undelivered", f"{found['dead_letters']} texts that a channel refused for good"


def _turns(found: Payload) -> Table:
    table = Table("session", "phase", "since", "turn for", box=box.SIMPLE, pad_edge=False)
    for turn in _items(found, "turns"):
        detail = f": {turn.get('detail')}" if turn.get("detail") else ""
        cells = (
            f"{turn.get('session_key')}",
            f"{turn.get('phase')}{detail}",
            _age(turn.get("phase_age_ms"), 1000),
            _age(turn.get("age_ms"), 1000),
        )
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def _channels(found: Payload) -> Table:
    table = Table("channel", "state", "restarts", "last error", box=box.SIMPLE, pad_edge=False)
    for channel in _items(found, "channels"):
        cells = (channel.get(key) for key in ("name", "state", "restarts", "error"))
        table.add_row(*(Text(harmless(str("" if cell is None else cell))) for cell in cells))
    return table


def _part(found: Payload, key: str) -> Payload:
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(found: Payload, key: str) -> Iterator[Payload]:
    value = found.get(key)
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item


def _age(value: object, per_second: int) -> str:
    """A span of time as hours, minutes and seconds."""
    if not isinstance(value, int | float):
        return "?"
    return str(timedelta(seconds=int(value / per_second)))
