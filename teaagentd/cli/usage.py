"""`teaagentd usage`: what models came to."""

from __future__ import annotations

from typing import get_args

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from teaagentd.cli.client import Payload
from teaagentd.cli.console import harmless, put
from teaagentd.cli.desk import desk, items, put_lines
from teaagentd.cli.options import current_home, home_option, run_async
from teaagentd.store.spent import SpentBy


@click.command()
@click.option("--by", type=click.Choice(get_args(SpentBy)), default="day", help="What to sum up.")
@click.option(
    "--days", type=click.IntRange(1, 36_500), default=30, help="So many days, today included."
)
@click.option("--json", "as_json", is_flag=True, help="Print the sums as one JSON object.")
@home_option
def usage(by: str, days: int, as_json: bool) -> None:
    """Show what models came to, in tokens and cents.

    A cost with ~ holds estimates, for requests that told no usage; one with + leaves requests
    out whose price is not known.
    """
    home = current_home()

    async def read() -> Payload:
        async with desk(home) as client:
            return await client.get("/v1/usage", by=by, days=str(days))

    found = run_async(read)
    if as_json:
        put(orjson.dumps(found).decode())
        return
    entries = list(items(found, "entries"))
    if not entries:
        put_lines(f"No model was asked since {found.get('since')}.")
    else:
        _print(by, entries, found.get("total"))
    for cap in items(found, "caps"):
        put_lines(f"{cap.get('name')} = {_number(cap.get('limit'))}: {_spent(cap)}")


def _print(by: str, entries: list[Payload], total: object) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(by)
    for name in ("requests", "read", "cached", "written", "cents"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(harmless(str(entry.get("name") or "(none)")), entry) for entry in entries]
    if isinstance(total, dict) and len(rows) > 1:
        table.show_footer = False
        rows.append(("total", total))
    for name, entry in rows:
        table.add_row(
            Text(name),
            _number(entry.get("requests")),
            _number(entry.get("input_tokens")),
            _number(entry.get("cached_tokens")),
            _number(entry.get("output_tokens")),
            _cents(entry),
        )
    Console(highlight=False).print(table)


def _cents(entry: Payload) -> str:
    unknown, requests = entry.get("unknown"), entry.get("requests")
    if unknown and unknown == requests:
        return "unknown"
    about = "~" if entry.get("estimated") else ""
    more = "+" if unknown else ""
    return f"{about}{_number(entry.get('cost_cents'))}{more}"


def _spent(cap: Payload) -> str:
    held = cap.get("held")
    aside = f", {_number(held)} set aside" if held else ""
    return f"{_number(cap.get('spent'))} spent{aside}; begins anew {cap.get('resets_at')}"


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else "?"
