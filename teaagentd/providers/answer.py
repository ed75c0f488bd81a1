"""One reader for what chat completion servers answer, streamed or whole, well-formed or not.

Servers that call themselves compatible number calls wrongly, repeat or leave out ids, cut
arguments, send chunks without choices and usage twice. `Answer` takes their chunks in order
and yields one normalised reply; whatever it hands out as a call is complete, or says why not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from teaagentd.providers.thoughts import Thoughts
from teaagentd.transcript import clean_text
from teaagentd.types import FinishReason, Json, JsonObject, ToolCall, Usage

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
_HIGH_SURROGATE = re.compile("[\ud800-\udbff]\\Z")


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


@dataclass(slots=True)
class _OpenCall:
    """A call while its pieces arrive."""

    id: str
    name: str
    index: int | None
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object already."""
        text = self.text.strip()
        return text.endswith("}") and [type(value) for value in _objects(text)] == [dict]


class Answer:
    """A reply as it is put together."""

    def __init__(self, *, prefilled: bool = False) -> None:
        """`prefilled`: this model's replies begin with thinking whose tag is in the prompt."""
        self.finish: FinishReason | None = None
        self.model: str | None = None
        self.usage = Usage()
        self.finish_word: str | None = None
        """The server's own word for the end, while it has said one."""
        self.thoughts = Thoughts(prefilled=prefilled)
        self._carry = ""
        self._reasoning: list[str] = []
        self._calls: list[_OpenCall] = []

    @property
    def content(self) -> str:
        return self.thoughts.said

    @property
    def reasoning(self) -> str | None:
        """What the server calls so; else the thinking that it left in the text."""
        if self._reasoning:
            return clean_text("".join(self._reasoning))
        return self.thoughts.thought or None

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def add(self, chunk: Mapping[str, object]) -> tuple[str, bool]:
        """Take one chunk, or a whole answer. Returns the text that it adds, and whether it
        brought the answer forward at all (text, reasoning, a piece of a call, the end)."""
        if isinstance(model := chunk.get("model"), str) and model:
            self.model = model
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = read_usage(usage)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return "", False
        choice = choices[0]
        if not isinstance(choice, dict):
            return "", False
        text, forward = "", False
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            text, forward = self._add_delta(delta)
        if isinstance(word := choice.get("finish_reason"), str) and word:
            self.finish_word = word
            self.finish = _FINISH.get(word.lower(), "other")
            forward = True
        return text, forward

    def _add_delta(self, delta: Mapping[str, object]) -> tuple[str, bool]:
        text = _text(delta.get("content")) or _text(delta.get("refusal"))
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        if reasoning:
            self._reasoning.append(reasoning)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._add_call(call)
        return self._say(text), bool(text or reasoning or calls)

    def _say(self, text: str) -> str:
        """`text` without broken surrogates; half a pair waits for its other half."""
        text = self._carry + text
        self._carry = ""
        if text and not text.isascii():
            if _HIGH_SURROGATE.search(text):
                text, self._carry = text[:-1], text[-1]
            text = clean_text(text)
        return self.thoughts.feed(text) if text else ""

    def end(self) -> str:
        """The text that was still held back; called once, after the last chunk."""
        text, self._carry = clean_text(self._carry), ""
        return self.thoughts.feed(text) + self.thoughts.end(calls=self.has_calls)

    def _add_call(self, piece: Mapping[str, object]) -> None:
        function = piece.get("function")
        if not isinstance(function, dict):
            function = {}
        call_id = piece.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        index = piece.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        text = arguments if isinstance(arguments, str) else ""
        call = self._target(call_id, name, index, text)
        if call is None:
            call = _OpenCall(call_id, name, index)
            self._calls.append(call)
        call.id = call.id or call_id
        call.name = call.name or name
        if text:
            call.pieces.append(text)

    def _target(self, call_id: str, name: str, index: int | None, text: str) -> _OpenCall | None:
        """The open call that a piece belongs to; None opens a new one.

        A piece with a name is the start of a call unless it repeats what is known of the one
        before. One without belongs to a call with its id, else its index, else to the last.
        """
        if not self._calls:
            return None
        by_id = [call for call in self._calls if call_id and call.id == call_id]
        by_index = [call for call in self._calls if index is not None and call.index == index]
        known = (by_id or by_index or self._calls)[-1]
        if not name:
            return known
        if index is not None and not by_index and not by_id:
            return None
        if call_id and known.id and call_id != known.id:
            return None
        if name != known.name and known.name:
            return None
        return None if text.strip() and known.complete() else known

    def tool_calls(self, *, whole: bool) -> tuple[ToolCall, ...]:
        """The calls, each under an id of its own. `whole` says that the answer ended as it
        should: in a cut one, missing arguments are a cut too, and not an empty object."""
        found: list[ToolCall] = []
        for call in self._calls:
            found.extend(_read_call(call, whole=whole))
        return _distinct(found)


def _text(value: object) -> str:
    """Text that may also come as a list of typed parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


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


def _read_call(call: _OpenCall, *, whole: bool) -> list[ToolCall]:
    """`call`, or the several that a server ran together under one index."""
    text = call.text.strip()
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


def _broken(call: _OpenCall, problem: str) -> ToolCall:
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


def read_usage(usage: Mapping[str, object]) -> Usage:
    """Tokens as a server counts them; a figure that it does not give stays unknown."""
    prompt, completion = (
        part if isinstance(part := usage.get(name), dict) else {}
        for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    read, cached = count(usage.get("prompt_tokens")), count(prompt.get("cached_tokens"))
    if cached is None:
        cached = count(usage.get("prompt_cache_hit_tokens"))
    if read is not None and cached is not None:
        cached = min(cached, read)
    return Usage(
        input_tokens=read,
        cached_tokens=cached,
        output_tokens=count(usage.get("completion_tokens")),
        reasoning_tokens=count(completion.get("reasoning_tokens")),
    )


def count(value: object) -> int | None:
    """A number of tokens; some servers write it in quotes."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:18])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
