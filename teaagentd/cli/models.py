"""`teaagentd models`: which of the configured models answers."""

from __future__ import annotations

import click
import orjson

from teaagentd.cli.client import Payload
from teaagentd.cli.console import put
from teaagentd.cli.desk import desk, items, put_lines
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.types import SessionKey

_SESSION = click.option(
    "--session", "key", callback=session_key, default=None, help="Of this conversation alone."
)


@click.group()
@home_option
def models() -> None:
    """List the configured models, and choose which one is asked first."""


@models.command(name="list")
@_SESSION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@home_option
def list_(key: SessionKey | None, as_json: bool) -> None:
    """List the models in the order in which they are asked; * marks the one that comes first."""
    home = current_home()

    async def read() -> list[Payload]:
        query = {} if key is None else {"session_key": str(key)}
        async with desk(home) as client:
            return list(items(await client.get("/v1/models", **query), "models"))

    entries = run_async(read)
    if as_json:
        put(orjson.dumps(entries).decode())
        return
    put_lines(*(_line(entry) for entry in entries))


@models.command()
@click.argument("name")
@_SESSION
@home_option
def use(name: str, key: SessionKey | None) -> None:
    """Have the model NAME asked first, in every conversation or in one.

    NAME is that of a [providers.NAME] table, or what `models list` calls the first one. `default`
    goes back to what is configured.
    """
    home = current_home()
    body = {"name": name, "session_key": None if key is None else str(key)}

    async def choose() -> Payload:
        async with desk(home) as client:
            return await client.act("POST", "/v1/models/choice", body)

    put_lines(str(run_async(choose).get("told")))


def _line(entry: Payload) -> str:
    window = entry.get("context_window")
    notes = [f"reads {window:,} tokens"] if isinstance(window, int) else []
    if entry.get("on_request"):
        notes.append("asked only where it is chosen")
    if isinstance(rests_s := entry.get("rests_s"), int | float):
        notes.append(f"rests for {rests_s:.0f} s")
    mark = "*" if entry.get("chosen") else " "
    return "  ".join(
        [f"{mark} {entry.get('name')}", str(entry.get("model")), ", ".join(notes)]
    ).rstrip()
