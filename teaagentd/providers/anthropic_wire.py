"""A request in the dialect of Anthropic's Messages API: the same request is always the same bytes.

Rules: https://docs.anthropic.com/en/api/messages, and its pages on tool use, extended thinking
and prompt caching.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence, Set

import orjson

from teaagentd.providers.attached import pictures, words
from teaagentd.providers.wire import Body, Messages, Wire, budget, effort
from teaagentd.transcript import SUMMARY_NOTE
from teaagentd.types import LLMMessage, LLMRequest, Picture, Shown, ToolCall, ToolSpec

OUTPUT_TOKENS = 8192
"""The limit where none is set: this dialect demands one."""
LEAST_BUDGET = 1024
"""Tokens of thinking; the API takes no fewer."""
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 128
_VERSION = re.compile(r"-(?:\d{8}|latest)$")


class Turns(Messages):
    """The messages of a request: results first in the message after their calls, and thinking
    that `model` has signed before them, whole or not at all."""

    def __init__(
        self,
        messages: Sequence[LLMMessage],
        *,
        model: str,
        shown: Mapping[str, Shown] | None = None,
        thinking: bool = True,
    ) -> None:
        super().__init__(messages, shown=shown)
        self._model = model
        self._thinking = thinking
        self._thoughtful = _thoughtful(messages, model) if thinking else frozenset()
        self.characters += sum(len(messages[at].thinking or "") for at in self._thoughtful)

    @property
    def thinks(self) -> bool:
        return bool(self._thoughtful)

    def without_thinking(self) -> Messages:
        return Turns(self._messages, model=self._model, shown=self._shown, thinking=False)

    def without_pictures(self, paths: Set[str]) -> Messages:
        shown = {path: one for path, one in self._shown.items() if path not in paths}
        return Turns(self._messages, model=self._model, shown=shown, thinking=self._thinking)

    @property
    def within_round(self) -> bool:
        """Whether the model goes on after calls that it made without having thought."""
        for at in range(len(self._messages) - 1, -1, -1):
            if self._messages[at].role == "assistant":
                return bool(self._messages[at].tool_calls) and at not in self._thoughtful
        return False

    def __iter__(self) -> Iterator[dict[str, Wire]]:
        """Messages in turns: what one side said one after the other is one message."""
        role, blocks = "", list[Wire]()
        for at, message in enumerate(self._messages):
            speaks = "assistant" if message.role == "assistant" else "user"
            if speaks != role and blocks:
                yield {"role": role, "content": blocks}
                blocks = []
            role = speaks
            if at in self._thoughtful:
                blocks.extend(signed(message))
            blocks.extend(_blocks(message, self._shown))
        if blocks:
            yield {"role": role, "content": blocks}


def _thoughtful(messages: Sequence[LLMMessage], model: str) -> frozenset[int]:
    """Which messages go out with what was thought before them. Once a summary stands for what
    came before, only those of the present round: the others belong to another context."""
    found = {
        at
        for at, message in enumerate(messages)
        if message.thinking and message.model and _same(message.model, model) and signed(message)
    }
    if not any(message.note == SUMMARY_NOTE for message in messages):
        return frozenset(found)
    last = max((at for at, one in enumerate(messages) if one.role == "user"), default=-1)
    calling = (at for at, one in enumerate(messages) if one.tool_calls)
    begin = min(last, max(calling, default=len(messages)))
    return frozenset(at for at in found if at >= begin)


def _same(made: str, model: str) -> bool:
    """Whether two names are of one model; one may name its version."""
    return _VERSION.sub("", made) == _VERSION.sub("", model)


def signed(message: LLMMessage) -> list[Wire]:
    """The blocks in `message.thinking`, as they came; none if they cannot be read."""
    try:
        blocks = orjson.loads(message.thinking or "[]")
    except orjson.JSONDecodeError:
        return []
    return blocks if isinstance(blocks, list) else []


def messages_body(request: LLMRequest, *, model: str) -> Body:
    """The body of `request`, always streamed and with the prefix cached."""
    spoken = [message for message in request.messages if message.role != "system"]
    turns = Turns(spoken, model=model, shown=request.shown)
    output = request.max_output_tokens or OUTPUT_TOKENS
    body: Body = {"model": model, "max_tokens": output, "stream": True}
    system: list[Wire] = [
        {"type": "text", "text": message.content}
        for message in request.messages
        if message.role == "system"
    ]
    if system:
        body["system"] = system
    body["messages"] = turns
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = {"type": request.tool_choice}
    # The last block that can be is marked for the cache by the server.
    body["cache_control"] = {"type": "ephemeral"}
    config: dict[str, Wire] = {}
    if request.response_schema is not None:
        config["format"] = {"type": "json_schema", "schema": request.response_schema}
    if request.reasoning is not None:
        tokens = max(budget(request.reasoning), LEAST_BUDGET)
        body["max_tokens"] = output + tokens
        if not isinstance(request.reasoning, int):
            body["thinking"] = {"type": "adaptive"}
            config["effort"] = effort(request.reasoning)
        elif not turns.within_round:
            body["thinking"] = {"type": "enabled", "budget_tokens": tokens}
    elif request.temperature is not None:
        # With thinking there is one temperature only.
        body["temperature"] = min(request.temperature, 1.0)
    if config:
        body["output_config"] = config
    return body


def _blocks(message: LLMMessage, shown: Mapping[str, Shown]) -> Iterator[Wire]:
    text, seen = words(message, shown), [_picture(one) for one in pictures(message, shown)]
    if message.role == "tool":
        yield {
            "type": "tool_result",
            "tool_use_id": _name(message.tool_call_id or ""),
            "content": [{"type": "text", "text": text}, *seen] if seen else text,
        }
        return
    if text.strip():
        yield {"type": "text", "text": text}
    yield from seen
    for call in message.tool_calls:
        yield _use(call)


def _picture(one: Picture) -> Wire:
    source: Wire = {"type": "base64", "media_type": one.media_type, "data": one.data}
    return {"type": "image", "source": source}


def _use(call: ToolCall) -> Wire:
    return {
        "type": "tool_use",
        "id": _name(call.id),
        "name": _name(call.name),
        "input": call.arguments,
    }


def _name(text: str) -> str:
    """`text` as an id or name that is taken: others become another, ever the same one."""
    if text and len(text) <= _LONGEST_NAME and not _NO_NAME.search(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{_NO_NAME.sub('_', text)[:64]}_{digest}"


def _tool(tool: ToolSpec) -> Wire:
    return {
        "name": _name(tool.name),
        "description": tool.description,
        "input_schema": tool.parameters,
    }
