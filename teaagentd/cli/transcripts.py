"""Transcripts as text: for people, or line by line for programs; notes are in neither."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import orjson

from teaagentd.cli.client import Payload
from teaagentd.cli.exits import DISK, Failure

_NAMES = {"user": "You", "assistant": "Assistant", "tool": "Result"}


def as_json_lines(message: Payload) -> str:
    """A message on one line. It ends at a line feed alone, whatever separators its text has."""
    return orjson.dumps(message).decode()


def as_markdown(message: Payload) -> str:
    """A message under its heading."""
    role = str(message.get("role"))
    name = f" of {message.get('name')}" if role == "tool" and message.get("name") else ""
    lines = [f"## {_NAMES.get(role, role)}{name}", ""]
    if message.get("content"):
        lines += [str(message["content"]), ""]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            arguments = orjson.dumps(call.get("arguments")).decode()
            lines += [f"calls `{call.get('name')}` with `{arguments}`", ""]
    return "\n".join(lines)


async def write_new(
    path: Path, messages: AsyncIterator[Payload], write: Callable[[Payload], str]
) -> int:
    """Write messages to a file that is not there yet, whole or not at all, open to its owner
    only; how many. Raises `Failure`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}"[:200])
    count = 0
    try:
        with _new(draft) as stream:
            async for message in messages:
                stream.write(write(message).encode("utf-8", "replace") + b"\n")
                count += 1
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, path)
    except FileExistsError:
        raise Failure(f"{path} exists already, and was not written over") from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; nothing was written", DISK) from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def _new(path: Path) -> BinaryIO:
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))
