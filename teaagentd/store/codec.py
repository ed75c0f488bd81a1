"""Structured columns as JSON text, whatever the values: the text comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import orjson

from teaagentd.transcript import clean_text
from teaagentd.types import Attachment, Json, ToolCall

_EXACT = " "
"""A leading blank marks text that orjson would not read back exactly: integers of more than 64
bits. Blanks are legal before a JSON value, so the column stays plain JSON."""


def dump(value: Json) -> str:
    """`value` as JSON text, lone surrogates cleaned."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return _EXACT + json.dumps(clean_json(value), ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> Json:
    """The value of a column that `dump` wrote. Raises `ValueError`."""
    value: Json = json.loads(text) if text.startswith(_EXACT) else orjson.loads(text)
    return value


def clean_json(value: Json) -> Json:
    """`value` with every text in it, names included, cleaned of lone surrogates."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(name): clean_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(member) for member in value]
    return value


def dump_calls(calls: Sequence[ToolCall]) -> str | None:
    """None for no calls."""
    if not calls:
        return None
    return dump([_call_object(call) for call in calls])


def _call_object(call: ToolCall) -> Json:
    known: dict[str, Json] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    if call.problem is not None:
        known["problem"] = call.problem
    return known


def load_calls(text: str | None) -> tuple[ToolCall, ...]:
    """The calls of a column. Raises `ValueError` for what is not a list of calls."""
    if text is None:
        return ()
    value = load(text)
    if not isinstance(value, list):
        raise ValueError("no list of calls")
    return tuple(_call(item) for item in value)


def _call(item: Json) -> ToolCall:
    if not isinstance(item, Mapping):
        raise ValueError("a call is no object")
    call_id, name = item.get("id"), item.get("name")
    arguments, problem = item.get("arguments"), item.get("problem")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise ValueError("a call without id or name")
    if not isinstance(arguments, Mapping) or not (problem is None or isinstance(problem, str)):
        raise ValueError("a call whose arguments are no object")
    return ToolCall(id=call_id, name=name, arguments=arguments, problem=problem)


def dump_attachments(attachments: Sequence[Attachment]) -> str | None:
    """None for none."""
    if not attachments:
        return None
    return dump([asdict(attachment) for attachment in attachments])


def load_attachments(text: str | None) -> tuple[Attachment, ...]:
    """The attachments of a column. Raises `ValueError`."""
    if text is None:
        return ()
    value = load(text)
    if not isinstance(value, list):
        raise ValueError("no list of attachments")
    return tuple(_attachment(item) for item in value)


def _attachment(item: Json) -> Attachment:
    if not isinstance(item, Mapping):
        raise ValueError("an attachment is no object")
    path, media_type = item.get("path"), item.get("media_type")
    name, size = item.get("name"), item.get("size")
    if (
        not isinstance(path, str)
        or not isinstance(media_type, str)
        or not isinstance(name, str)
        or not isinstance(size, int)
    ):
        raise ValueError("an attachment without path, type, name or size")
    return Attachment(path=path, media_type=media_type, name=name, size=size)
