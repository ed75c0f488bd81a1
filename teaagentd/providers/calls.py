"""Tool calls as servers send them, in pieces, doubled, cut off: put together, or told as broken.

Whatever is handed out as a call is complete, or says why not.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from teaagentd.transcript import clean_text
from teaagentd.types import FinishReason, Json, JsonObject, ToolCall

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}
"""What servers call the end of an answer."""


def read_json(text: str | bytes) -> object:
    """`text` as JSON. Raises ValueError. Half a surrogate pair, which a chunk may end in, is
    kept: what is made of it depends on the chunk that follows."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def count(value: object) -> int | None:
    """A number of tokens; some servers write it in quotes."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:18])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


@dataclass(slots=True)
class OpenCall:
    """A call while its pieces arrive."""

    id: str
    name: str
    index: int | None
    pieces: list[str] = field(default_factory=list)
    whole: Mapping[str, object] | None = None
    """Arguments that came as an object."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object already."""
        text = self.text.strip()
        return text.endswith("}") and [type(value) for value in _objects(text)] == [dict]


def read_calls(calls: Iterable[OpenCall], *, whole: bool) -> tuple[ToolCall, ...]:
    """The calls, each under an id of its own. `whole` says that the answer ended as it
    should: in a cut one, missing arguments are a cut too, and not an empty object."""
    found: list[ToolCall] = []
    for call in calls:
        found.extend(_read_call(call, whole=whole))
    return _distinct(found)


def _objects(text: str) -> list[object]:
    """The JSON values that stand one after another in `text`, as far as they are whole; the
    rest, when there is one, as the last item: a `_Rest`."""
    decoder = json.JSONDecoder()
    values: list[object] = []
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            values.append(_Rest(text[at:]))
            break
        values.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return values


@dataclass(frozen=True, slots=True)
class _Rest:
    """What could not be read."""

    text: str


def _read_call(call: OpenCall, *, whole: bool) -> list[ToolCall]:
    """`call`, or the several that a server ran together under one index."""
    text = call.text.strip() or (json.dumps(call.whole) if call.whole else "")
    name = clean_text(call.name)
    if not name:
        return [_broken(call, "the call names no tool")]
    if not text:
        if whole:
            return [ToolCall(id=call.id, name=name, arguments={})]
        return [_broken(call, "the output was cut off before the arguments")]
    found = []
    values = _objects(text)
    if len(values) > 1 and values[0] == {}:
        # Some proxies open each call with an empty object and then send the real one.
        values = values[1:]
    for value in values:
        if isinstance(value, _Rest):
            found.append(_broken(call, f"the arguments cannot be read: {_cut(value.text)}"))
        elif isinstance(value, str) and isinstance(inner := _inner(value), dict):
            found.append(ToolCall(id=call.id, name=name, arguments=inner))
        elif isinstance(value, dict):
            found.append(ToolCall(id=call.id, name=name, arguments=clean_object(value)))
        else:
            found.append(_broken(call, "the arguments are not an object"))
    return found


def _inner(text: str) -> object:
    """An object that was encoded twice."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return clean_object(value) if isinstance(value, dict) else None


def _cut(text: str) -> str:
    return (
        f"they are cut off or broken after {len(text)} characters. Nothing was run. If they "
        "were too long for one reply, do the work in smaller parts"
    )


def _broken(call: OpenCall, problem: str) -> ToolCall:
    return ToolCall(
        id=call.id, name=clean_text(call.name) or "unnamed", arguments={}, problem=problem
    )


def clean_object(value: Mapping[str, object]) -> JsonObject:
    """`value` without lone surrogates anywhere."""
    return {clean_text(str(name)): _clean_value(item) for name, item in value.items()}


def _clean_value(value: object) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return clean_object(value)
    if isinstance(value, list):
        return [_clean_value(item) for item in value]
    return value if isinstance(value, int | float) else None


def _distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """`calls` under ids that are all different. The same call twice under one id is one call
    that was put together twice; another call under a known id gets a fresh one."""
    kept: list[ToolCall] = []
    by_id: dict[str, list[ToolCall]] = {}
    for call in calls:
        twins = by_id.setdefault(call.id, []) if call.id else []
        if call.id and any(
            twin.name == call.name and twin.arguments == call.arguments for twin in twins
        ):
            continue
        fresh = call
        if not call.id or twins:
            fresh = ToolCall(
                id=f"call_{secrets.token_hex(8)}",
                name=call.name,
                arguments=call.arguments,
                problem=call.problem,
            )
        twins.append(call)
        kept.append(fresh)
    return tuple(kept)
