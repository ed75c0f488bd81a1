"""What a model decides, and how one JSON object says it: types, schema, parsing, streaming."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import uuid4

import orjson

from teaagentd.errors import ToolValidationError
from teaagentd.transcript import clean_text
from teaagentd.types import Json, JsonObject, ToolCall, ToolSpec

ANSWER = "answer"
"""The action that is no tool; no tool may have this name."""

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords of JSON Schema whose values are data, whatever they look like."""
_NAME_LIMIT = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_FENCE = re.compile(r"\A\s*```[A-Za-z]*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
_HIGH, _LOW, _BEYOND = 0xD800, 0xDC00, 0xE000


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalAnswer:
    """The model speaks to the user. `metadata["decision_fallback"]` names the fallback when the
    reply was not a decision as asked for."""

    content: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCalls:
    """The model wants tools run, and may say something beside them."""

    calls: tuple[ToolCall, ...]
    notice: str | None = None


Decision: TypeAlias = FinalAnswer | ToolCall | ToolCalls


def is_blank(text: str) -> bool:
    """Whether nothing of `text` can be seen: white space, control and zero-width characters."""
    return all(
        character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text
    )


def new_call_id() -> str:
    return f"call_{uuid4().hex[:16]}"


def normalise_calls(calls: Sequence[ToolCall], taken: Collection[str]) -> tuple[ToolCall, ...]:
    """`calls` as they can be run and stored: one id each, unlike any in `taken`, names that
    every provider takes back, arguments that can be written as JSON.

    The same id, name and arguments twice is one call misassembled, and stands once; the same id
    with other arguments are two calls. An id seen in an earlier answer means nothing.
    """
    out: list[ToolCall] = []
    used = set(taken)
    for index, call in enumerate(calls):
        if call.id and call in calls[:index]:
            continue
        call_id = call.id if call.id and call.id not in used else new_call_id()
        used.add(call_id)
        name = _NOT_IN_NAMES.sub("_", call.name)[:_NAME_LIMIT] or "unnamed"
        out.append(_storable(replace(call, id=call_id, name=name)))
    return tuple(out)


def _storable(call: ToolCall) -> ToolCall:
    """`call` with arguments that orjson writes as they are: no lone surrogates, no number
    beyond 64 bits or outside of JSON."""
    try:
        text = clean_text(json.dumps(call.arguments, ensure_ascii=False, allow_nan=False))
        arguments = json.loads(text)
        orjson.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"the arguments cannot be used: {error}; send them again, as plain JSON"
        return replace(call, arguments={}, problem=call.problem or problem)
    return replace(call, arguments=arguments) if arguments != call.arguments else call


def decision_schema(
    tools: Sequence[ToolSpec], *, answer_only: bool = False, answer_limit: int | None = None
) -> JsonObject:
    """The JSON Schema of one decision: the answer form, then one form per tool, in order.

    The action comes first and the text last, so that a reply that is being written can be
    told apart and shown. `answer_limit` bounds the text, in characters.
    """
    text: dict[str, Json] = {"type": "string", "minLength": 1}
    if answer_limit is not None:
        text["maxLength"] = answer_limit
    answer = _form(ANSWER, "text", text)
    if answer_only or not tools:
        return answer
    forms = [
        _form(tool.name, "arguments", _at(tool.parameters, f"#/anyOf/{place}/properties/arguments"))
        for place, tool in enumerate(tools, start=1)
    ]
    return {"anyOf": [answer, *forms]}


def _at(schema: JsonObject, place: str) -> JsonObject:
    """`schema` as a part of another one, at `place`: what refers to its root refers to there. One
    with an `$id` is a document of its own wherever it stands."""
    return schema if "$id" in schema else _moved(schema, place)


def _moved(schema: JsonObject, place: str) -> JsonObject:
    moved: dict[str, Json] = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and (value == "#" or value[:2] == "#/"):
            value = place + value[1:]
        elif isinstance(value, Mapping) and name not in _DATA:
            value = _moved(value, place)
        elif isinstance(value, list) and name not in _DATA:
            value = [_moved(one, place) if isinstance(one, Mapping) else one for one in value]
        moved[name] = value
    return moved


def _form(action: str, name: str, value: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {"action": {"const": action}, name: value},
        "required": ["action", name],
        "additionalProperties": False,
    }


def parse_model_decision(text: str) -> FinalAnswer | ToolCalls:
    """The decision that a reply means. A Markdown fence around the object is taken off.

    Raises `ToolValidationError`, worded for the model, when it is anything else than one JSON
    object in one of the forms of `decision_schema`. Whether the tool exists and takes these
    arguments is not looked at.
    """
    decision = _object(text)
    action = decision.get("action")
    said = decision.get("text", decision.get(ANSWER) if action is None else None)
    if action == ANSWER or (action is None and said is not None):
        if not isinstance(said, str):
            raise ToolValidationError('an answer needs "text", a string')
        if "arguments" in decision:
            raise ToolValidationError('an answer has no "arguments"; name the tool as "action"')
        return FinalAnswer(content=clean_text(said))
    if not isinstance(action, str) or not action:
        raise ToolValidationError('"action" must be "answer" or the name of a tool')
    arguments = decision.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ToolValidationError('"arguments" must be an object')
    call = ToolCall(id=new_call_id(), name=action, arguments=arguments)
    notice = clean_text(said) if isinstance(said, str) and not is_blank(said) else None
    return ToolCalls(calls=(call,), notice=notice)


def _object(text: str) -> dict[str, Json]:
    fenced = _FENCE.match(text)
    try:
        # Small models put raw line breaks into strings: strict=False takes them.
        value = json.loads(
            fenced.group(1) if fenced else text, strict=False, parse_constant=_no_constant
        )
    except RecursionError:
        raise ToolValidationError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ToolValidationError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ToolValidationError("not a JSON object")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def render_call(name: str, arguments: JsonObject, notice: str = "") -> str:
    """The JSON object that asks for one call."""
    beside: dict[str, Json] = {"text": notice} if notice else {}
    return json.dumps({"action": name, "arguments": arguments, **beside}, ensure_ascii=False)


def render_answer(text: str) -> str:
    """The JSON object that answers with `text`."""
    return json.dumps({"action": ANSWER, "text": text}, ensure_ascii=False)


class DecisionContentStreamer:
    """Turns the chunks of a JSON decision into the text of its answer, as it grows.

    Call it with each chunk; it calls `on_text` with what became readable. Whatever is no
    answer's text is left out: other properties, a tool's arguments, a reply that is not JSON.
    Escapes may be split anywhere. Text that comes before its `action` is held until the action
    is known to be the answer. `text` is what was given out so far.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._step = self._before
        self._depth = 0
        self._key: str | None = None
        """The property whose value is being read; None while a key is awaited."""
        self._string: list[str] = []
        self._escape = ""
        self._high = 0
        self._action: str | None = None
        self._held: list[str] = []
        self._given: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._given)

    def __call__(self, chunk: str) -> None:
        at = 0
        while at < len(chunk):
            at = self._step(chunk, at)
        self._flush()

    # Each step reads from `at`, at least one character, and returns where to go on.

    def _before(self, chunk: str, at: int) -> int:
        character = chunk[at]
        if character == "{":
            self._depth = 1
            self._step = self._between
        elif character == "`":
            self._step = self._fence
        elif not character.isspace():
            self._step = self._never
        return at + 1

    def _fence(self, chunk: str, at: int) -> int:
        if chunk[at] == "\n":
            self._step = self._before
        return at + 1

    def _never(self, chunk: str, at: int) -> int:
        return len(chunk)

    def _between(self, chunk: str, at: int) -> int:
        """Between strings: follows the nesting, and which property's value comes."""
        character = chunk[at]
        if character == '"':
            self._string = []
            self._step = self._in_string
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._step = self._never
        elif character == "," and self._depth == 1:
            self._key = None
        return at + 1

    def _in_string(self, chunk: str, at: int) -> int:
        character = chunk[at]
        if character == '"':
            self._unit(0)
            self._close_string()
            return at + 1
        if character == "\\":
            self._escape = "\\"
            self._step = self._in_escape
            return at + 1
        end = _plain_end(chunk, at)
        if _HIGH <= ord(character) < _BEYOND:
            self._unit(ord(character))
            return at + 1
        self._unit(0)
        self._put(chunk[at:end])
        return end

    def _in_escape(self, chunk: str, at: int) -> int:
        self._escape += chunk[at]
        if self._escape[1] == "u" and len(self._escape) < 6:
            return at + 1
        self._step = self._in_string
        try:
            decoded = str(json.loads(f'"{self._escape}"'))
        except ValueError:
            self._step = self._never
            return at + 1
        if _HIGH <= ord(decoded) < _BEYOND:
            self._unit(ord(decoded))
        else:
            self._unit(0)
            self._put(decoded)
        return at + 1

    def _unit(self, unit: int) -> None:
        """One surrogate; 0 for anything else, which leaves a waiting one without its half."""
        if self._high and _LOW <= unit < _BEYOND:
            self._put(chr(0x10000 + ((self._high - _HIGH) << 10) + (unit - _LOW)))
            self._high = 0
            return
        if self._high:
            self._put("\ufffd")
            self._high = 0
        if _HIGH <= unit < _LOW:
            self._high = unit
        elif unit:
            self._put("\ufffd")

    def _put(self, text: str) -> None:
        if self._depth == 1 and self._key == "text":
            self._held.append(text)
        elif self._depth == 1:
            self._string.append(text)

    def _close_string(self) -> None:
        self._step = self._between
        if self._depth != 1:
            return
        if self._key is None:
            self._key = "".join(self._string)
        elif self._key == "action":
            self._action = "".join(self._string)

    def _flush(self) -> None:
        if self._held and self._action == ANSWER:
            text = "".join(self._held)
            self._held = []
            self._given.append(text)
            self._on_text(text)


_SPECIAL = re.compile('["\\\\\ud800-\udfff]')


def _plain_end(chunk: str, at: int) -> int:
    found = _SPECIAL.search(chunk, at + 1)
    return found.start() if found else len(chunk)
