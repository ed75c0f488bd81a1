"""A request in the chat completions dialect: the same request is always the same bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import orjson

from teaagentd.providers.attached import pictures, words
from teaagentd.transcript import clean_text
from teaagentd.types import (
    Effort,
    JsonObject,
    LLMMessage,
    LLMRequest,
    Picture,
    Reasoning,
    Shown,
    ToolCall,
    ToolSpec,
)

Wire: TypeAlias = "dict[str, Wire] | list[Wire] | str | int | float | bool | JsonObject | None"
Body: TypeAlias = "dict[str, Wire | Messages]"
LARGE = 1_000_000
"""Characters of its messages from which on a request is written while it is sent."""
_PIECE = 64 * 1024
_OPENING = b'"messages":['
BROUGHT = "[These are the pictures that the tools brought.]"


class Messages:
    """The messages of a request, each written when it is asked for, with what of its files is
    `shown`. With `reasoning` each call goes out with what the model thought before it, be it
    nothing."""

    def __init__(
        self,
        messages: Sequence[LLMMessage],
        *,
        shown: Mapping[str, Shown] | None = None,
        reasoning: bool = False,
    ) -> None:
        self._messages = messages
        self._shown = shown or {}
        self._reasoning = reasoning
        self.characters = sum(len(one.content) for one in messages)
        self.characters += sum(map(_length, self._shown.values()))

    def __iter__(self) -> Iterator[dict[str, Wire]]:
        brought: list[Picture] = []
        for message in self._messages:
            if brought and message.role != "tool":
                yield _brought(brought)
                brought = []
            written = _message(message, self._shown)
            if self._reasoning and message.tool_calls:
                written["reasoning_content"] = message.reasoning or ""
            yield written
            if message.role == "tool":
                brought += pictures(message, self._shown)
        if brought:
            yield _brought(brought)

    def with_reasoning(self) -> Messages:
        return Messages(self._messages, shown=self._shown, reasoning=True)

    @property
    def thinks(self) -> bool:
        """Whether signed thinking goes out with them; this dialect has none."""
        return False

    def without_thinking(self) -> Messages:
        return self

    @property
    def pictures(self) -> frozenset[str]:
        """The paths of the pictures that go out with them."""
        return frozenset(path for path, one in self._shown.items() if isinstance(one, Picture))

    def without_pictures(self, paths: Set[str]) -> Messages:
        """The same without the pictures at `paths`."""
        kept = {path: one for path, one in self._shown.items() if path not in paths}
        return Messages(self._messages, shown=kept, reasoning=self._reasoning)


def _length(one: Shown) -> int:
    return len(one.data if isinstance(one, Picture) else one)


class Pieces:
    """The bytes of a large body, written anew each time they are read, so that no copy of what was
    said is held while a model reads it. `length` is how many they are."""

    def __init__(self, body: Mapping[str, Wire | Messages], messages: Messages) -> None:
        head, _, tail = plain_bytes({**body, "messages": []}).partition(_OPENING)
        self._head, self._messages, self._tail = head + _OPENING, messages, tail
        self.length = sum(map(len, self.written()))

    def written(self) -> Iterator[bytes]:
        """All of it, in order."""
        piece = bytearray(self._head)
        for number, message in enumerate(self._messages):
            if number:
                piece += b","
            piece += plain_bytes(message)
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece) + self._tail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.written():
            yield piece


def encode(body: Mapping[str, Wire | Messages]) -> bytes | Pieces:
    """`body` as it is sent."""
    messages = body.get("messages")
    if isinstance(messages, Messages) and messages.characters > LARGE:
        return Pieces(body, messages)
    return plain_bytes(body)


def plain_bytes(value: object) -> bytes:
    """`value` as UTF-8 JSON. Lone surrogates, which no encoder takes, become U+FFFD."""
    try:
        return orjson.dumps(value, default=_plain)
    except orjson.JSONEncodeError:
        return orjson.dumps(_cleaned(value), default=_plain)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Messages) else dict(value)  # type: ignore[call-overload]


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(name)): _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple | Messages):
        return [_cleaned(item) for item in value]
    return value


BUDGETS: dict[Effort, int] = {"low": 2048, "medium": 8192, "high": 16384}
"""The tokens of thinking that an effort stands for."""


def effort(reasoning: Reasoning) -> Effort:
    """`reasoning` for a server that knows words only."""
    if not isinstance(reasoning, int):
        return reasoning
    return next((word for word, most in BUDGETS.items() if reasoning <= most), "high")


def budget(reasoning: Reasoning) -> int:
    """`reasoning` for a server that counts, in tokens."""
    return reasoning if isinstance(reasoning, int) else BUDGETS[reasoning]


def request_body(
    request: LLMRequest, *, model: str, limit_name: str = "max_tokens", router: bool = False
) -> Body:
    """The body of `request`, always streamed. `limit_name` is the server's word for the limit of
    the output: `max_completion_tokens` at OpenAI, `max_tokens` elsewhere. A `router` (OpenRouter)
    takes a limit of the thinking in tokens too."""
    body: Body = {
        "model": model,
        "messages": Messages(request.messages, shown=request.shown),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    if request.response_schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": request.response_schema},
        }
    if request.max_output_tokens is not None:
        body[limit_name] = request.max_output_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.reasoning is not None and router:
        in_tokens = isinstance(request.reasoning, int)
        body["reasoning"] = {"max_tokens" if in_tokens else "effort": request.reasoning}
    elif request.reasoning is not None:
        body["reasoning_effort"] = effort(request.reasoning)
    return body


def _message(message: LLMMessage, shown: Mapping[str, Shown]) -> dict[str, Wire]:
    if message.role == "tool":
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": words(message, shown),
        }
    if message.role == "assistant" and message.tool_calls:
        return {
            "role": "assistant",
            "content": message.content or None,
            "tool_calls": [_call(call) for call in message.tool_calls],
        }
    text = words(message, shown)
    seen = list(pictures(message, shown))
    return {"role": message.role, "content": _parts(text, seen) if seen else text}


def _brought(seen: Sequence[Picture]) -> dict[str, Wire]:
    """In this dialect the result of a tool is text; what it shows follows the results."""
    return {"role": "user", "content": _parts(BROUGHT, seen)}


def _parts(text: str, seen: Sequence[Picture]) -> list[Wire]:
    parts: list[Wire] = [{"type": "text", "text": text}] if text else []
    for one in seen:
        url = f"data:{one.media_type};base64,{one.data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _call(call: ToolCall) -> dict[str, Wire]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": plain_bytes(dict(call.arguments)).decode()},
    }


def _tool(tool: ToolSpec) -> dict[str, Wire]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }
