"""One reader for what the Messages API answers, streamed or whole."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from teaagentd.providers.calls import FINISH, OpenCall, count, read_calls
from teaagentd.providers.exchange import Dialect
from teaagentd.providers.thoughts import Spoken
from teaagentd.transcript import clean_text
from teaagentd.types import FinishReason, JsonObject, ToolCall, Usage

_THINKING = ("thinking", "redacted_thinking")


class MessageAnswer:
    """A reply as it is put together. See `Reading`."""

    def __init__(self, *, prefilled: bool = False) -> None:
        self.finish: FinishReason | None = None
        self.finish_word: str | None = None
        self.over = False
        self.model: str | None = None
        self.spoken = Spoken(prefilled=prefilled)
        self._counts: dict[str, int] = {}
        self._calls: list[OpenCall] = []
        self._thoughts: list[_Thought] = []
        self._open: dict[int, OpenCall | _Thought | None] = {}
        """What each block is; None for one of text."""
        self._last: int = -1

    @property
    def content(self) -> str:
        return self.spoken.thoughts.said

    @property
    def reasoning(self) -> str | None:
        text = "".join(thought.text for thought in self._thoughts)
        return clean_text(text) or self.spoken.thoughts.thought or None

    @property
    def thinking(self) -> str | None:
        """The thinking blocks as they came; None without any, or if one lacks its signature."""
        blocks = [thought.block() for thought in self._thoughts]
        if not blocks or not all(blocks):
            return None
        return orjson.dumps(blocks).decode()

    @property
    def usage(self) -> Usage:
        """Tokens; the API counts those read from and written to the cache beside the others."""
        fresh, read, written = (
            self._counts.get(name)
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
        return Usage(
            input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
            cached_tokens=read,
            output_tokens=self._counts.get("output_tokens"),
            cache_write_tokens=written,
        )

    def add(self, chunk: Mapping[str, object]) -> tuple[str, bool]:
        kind = chunk.get("type")
        if kind == "message_start":
            message = chunk.get("message")
            return self._whole(message) if isinstance(message, dict) else ("", False)
        if kind == "message":
            return self._whole(chunk)
        if kind == "message_stop":
            self.over = True
            return "", True
        if kind == "message_delta":
            self._count(chunk.get("usage"))
            delta = chunk.get("delta")
            return "", isinstance(delta, dict) and self._end(delta.get("stop_reason"))
        at = self._place(chunk, begins=kind == "content_block_start")
        block, delta = chunk.get("content_block"), chunk.get("delta")
        if kind == "content_block_start" and isinstance(block, dict):
            return self._begin(at, block)
        if kind == "content_block_delta" and isinstance(delta, dict):
            return self._go_on(at, delta)
        return "", False

    def end(self) -> str:
        return self.spoken.end(calls=bool(self._calls))

    def tool_calls(self, *, whole: bool) -> tuple[ToolCall, ...]:
        """See `read_calls`."""
        return read_calls(self._calls, whole=whole)

    def _whole(self, message: Mapping[str, object]) -> tuple[str, bool]:
        """A message that is whole, or the frame of one that comes in blocks."""
        if isinstance(model := message.get("model"), str) and model:
            self.model = model
        self._count(message.get("usage"))
        text, forward = "", False
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                self._last += 1
                more, _ = self._begin(self._last, block)
                text, forward = text + more, True
        if self._end(message.get("stop_reason")):
            forward = self.over = True
        return text, forward

    def _count(self, usage: object) -> None:
        """Later figures replace earlier ones: they are sums."""
        for name, value in usage.items() if isinstance(usage, dict) else ():
            if (number := count(value)) is not None:
                self._counts[str(name)] = number

    def _end(self, word: object) -> bool:
        if not isinstance(word, str) or not word:
            return False
        self.finish_word = word
        self.finish = FINISH.get(word.lower(), "other")
        return True

    def _place(self, chunk: Mapping[str, object], *, begins: bool) -> int:
        """The number of the block that `chunk` belongs to; the last one if it does not say."""
        at = chunk.get("index")
        known = isinstance(at, int) and not isinstance(at, bool) and (begins or at in self._open)
        self._last = at if known and isinstance(at, int) else self._last + begins
        return self._last

    def _begin(self, at: int, block: Mapping[str, object]) -> tuple[str, bool]:
        kind = block.get("type")
        self._open[at] = None
        if kind == "tool_use":
            given = block.get("input")
            call = OpenCall(_text(block.get("id")), _text(block.get("name")), at)
            call.whole = given if isinstance(given, dict) and given else None
            self._calls.append(call)
            self._open[at] = call
            return "", True
        if kind in _THINKING:
            thought = _Thought(block)
            self._thoughts.append(thought)
            self._open[at] = thought
            return "", True
        text = _text(block.get("text")) if kind == "text" else ""
        return self.spoken.say(text), bool(text)

    def _go_on(self, at: int, delta: Mapping[str, object]) -> tuple[str, bool]:
        target = self._open.get(at)
        if piece := _text(delta.get("partial_json")):
            call = target if isinstance(target, OpenCall) else next(reversed(self._calls), None)
            if call is None:
                call = OpenCall("", "", at)
                self._calls.append(call)
            call.pieces.append(piece)
            return "", True
        if "thinking" in delta or "signature" in delta:
            if not isinstance(target, _Thought):
                target = _Thought({})
                self._thoughts.append(target)
            return "", target.add(delta)
        text = _text(delta.get("text"))
        return self.spoken.say(text), bool(text)


class _Thought:
    """A block of thinking, whose text and signature come in pieces."""

    def __init__(self, block: Mapping[str, object]) -> None:
        self._block = block
        self._text = [_text(block.get("thinking"))]
        self._signature = [_text(block.get("signature"))]

    @property
    def text(self) -> str:
        return "".join(self._text)

    def add(self, delta: Mapping[str, object]) -> bool:
        text, signature = _text(delta.get("thinking")), _text(delta.get("signature"))
        self._text.append(text)
        self._signature.append(signature)
        return bool(text or signature)

    def block(self) -> JsonObject | None:
        """All of it, to be sent back; None if it is not signed."""
        if self._block.get("type") == "redacted_thinking":
            data = _text(self._block.get("data"))
            return {"type": "redacted_thinking", "data": data} if data else None
        signature = "".join(self._signature)
        if not signature:
            return None
        return {"type": "thinking", "thinking": clean_text(self.text), "signature": signature}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _reading(prefilled: bool) -> MessageAnswer:
    return MessageAnswer(prefilled=prefilled)


MESSAGES = Dialect(sdk="teaagentd.providers.anthropic_sdk", reading=_reading)
"""Anthropic's Messages API."""
