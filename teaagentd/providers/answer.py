"""One reader for what chat completion servers answer, streamed or whole, well-formed or not.

Servers that call themselves compatible number calls wrongly, repeat or leave out ids, cut
arguments, send chunks without choices and usage twice. `Answer` takes their chunks in order
and yields one normalised reply; whatever it hands out as a call is complete, or says why not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from teaagentd.providers.calls import FINISH, OpenCall, count, read_calls
from teaagentd.providers.exchange import Dialect
from teaagentd.providers.thoughts import Spoken
from teaagentd.transcript import clean_text
from teaagentd.types import FinishReason, ToolCall, Usage


class Answer:
    """A reply as it is put together."""

    def __init__(self, *, prefilled: bool = False) -> None:
        """`prefilled`: this model's replies begin with thinking whose tag is in the prompt."""
        self.finish: FinishReason | None = None
        self.model: str | None = None
        self.usage = Usage()
        self.finish_word: str | None = None
        """The server's own word for the end, while it has said one."""
        self.over = False
        """Whether the server said that nothing more comes. This dialect says it otherwise."""
        self.thinking: str | None = None
        self.spoken = Spoken(prefilled=prefilled)
        self._reasoning: list[str] = []
        self._calls: list[OpenCall] = []

    @property
    def content(self) -> str:
        return self.spoken.thoughts.said

    @property
    def reasoning(self) -> str | None:
        """What the server calls so; else the thinking that it left in the text."""
        if self._reasoning:
            return clean_text("".join(self._reasoning))
        return self.spoken.thoughts.thought or None

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
            self.finish = FINISH.get(word.lower(), "other")
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
        return self.spoken.say(text), bool(text or reasoning or calls)

    def end(self) -> str:
        """The text that was still held back; called once, after the last chunk."""
        return self.spoken.end(calls=bool(self._calls))

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
            call = OpenCall(call_id, name, index)
            self._calls.append(call)
        call.id = call.id or call_id
        call.name = call.name or name
        if text:
            call.pieces.append(text)

    def _target(self, call_id: str, name: str, index: int | None, text: str) -> OpenCall | None:
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
        """See `read_calls`."""
        return read_calls(self._calls, whole=whole)


def _reading(prefilled: bool) -> Answer:
    return Answer(prefilled=prefilled)


CHAT = Dialect(sdk="teaagentd.providers.openai_sdk", reading=_reading)
"""Chat completions, as OpenAI began them."""


def _text(value: object) -> str:
    """Text that may also come as a list of typed parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


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
