"""What a daemon under test is given beside its own parts: a push channel and tools that write
down all they do, so that a test can count it after any number of crashes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import orjson

from teaagentd.abc import Inbox, Tool, ToolContext
from teaagentd.errors import DeliveryDelayed, DeliveryRefused
from teaagentd.types import Effect, JsonObject, Part, Receipt, ToolSpec

FOLDER_VARIABLE = "DAEMON_TEST_FOLDER"
POINTS = {
    "teaagentd.channels": {"filebox": "tests.daemon_plugin:channel"},
    "teaagentd.tools": {"marked": "tests.daemon_plugin:tools"},
}


def folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def note(name: str, entry: Mapping[str, object]) -> None:
    """Append one line to a file; a kill of the process cannot take it back."""
    line = orjson.dumps(dict(entry)) + b"\n"
    file = os.open(folder() / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def notes(where: Path, name: str) -> list[dict[str, Any]]:
    """What `note` wrote, for the test."""
    file = where / name
    return [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


class FileBox:
    """A channel of small parts that cannot deduplicate. Its world is the file `sent`."""

    limit = 60
    idempotent = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, inbox: Inbox) -> None:
        await anyio.sleep_forever()

    async def send(self, part: Part) -> Receipt:
        """Refuses a part that says REFUSE, delays the first try of one that says DELAY, holds one
        that says HOLD until the test makes the file `release-send`."""
        entry = {
            "outbound": part.outbound_id,
            "index": part.index,
            "chat": part.address.chat_id,
            "content": part.content,
            "key": part.idempotency_key,
            "repeat": part.possible_repeat,
        }
        if "REFUSE" in part.content:
            note("refused", entry)
            raise DeliveryRefused("chat not found")
        if "DELAY" in part.content and not any(
            seen["key"] == part.idempotency_key for seen in notes(folder(), "delayed")
        ):
            note("delayed", entry)
            raise DeliveryDelayed("slow down", wait_s=0.2)
        if "HOLD" in part.content:
            note("held", entry)
            await _released("send")
        note("sent", entry)
        await anyio.sleep(0.02)
        return Receipt(external_id=f"{part.outbound_id}.{part.index}")


class Count:
    """Does its one effect, which nobody may see twice."""

    timeout_s: float | None = None
    spec = ToolSpec(
        name="count",
        description="Count a token.",
        parameters={
            "type": "object",
            "properties": {"token": {"type": "string"}},
            "required": ["token"],
        },
        effects=frozenset({Effect.NONE}),
    )

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        note("effects", {"token": arguments["token"], "call": context.call_id})
        await anyio.sleep(0.02)
        return f"counted {arguments['token']}"


class Hold:
    """Runs until the test makes a file of the given name."""

    timeout_s: float | None = None
    spec = ToolSpec(
        name="hold",
        description="Wait for a file.",
        parameters={
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
        effects=frozenset({Effect.NONE}),
    )

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        name = str(arguments["name"])
        note("effects", {"token": f"hold {name}", "call": context.call_id})
        await _released(name)
        return f"held for {name}"


class Stubborn:
    """Waits for what never comes, and takes one cancellation for nothing."""

    timeout_s: float | None = 0.3
    spec = ToolSpec(name="stubborn", description="Never end.", parameters={"type": "object"})

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        note("effects", {"token": "stubborn", "call": context.call_id})
        with suppress(anyio.get_cancelled_exc_class()):
            await asyncio.get_running_loop().create_future()
        await asyncio.get_running_loop().create_future()
        return "never"


class Broken:
    """Fails with an error that nobody planned."""

    timeout_s: float | None = None
    spec = ToolSpec(name="broken", description="Fail.", parameters={"type": "object"})

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        raise RuntimeError("the disk of the tool is on fire")


async def _released(name: str) -> None:
    release = anyio.Path(folder() / f"release-{name}")
    while not await release.exists():
        await anyio.sleep(0.02)


def channel(name: str, options: Mapping[str, object]) -> FileBox:
    return FileBox(name)


def tools() -> Sequence[Tool]:
    return (Count(), Hold(), Stubborn(), Broken())
