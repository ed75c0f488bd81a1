"""A journal, a watcher and tools in memory, which note what happens in the order it happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from teaagentd import transcript
from teaagentd.errors import TurnEnded
from teaagentd.types import (
    Attempt,
    Effect,
    Json,
    JsonObject,
    LLMMessage,
    ToolCall,
    ToolResult,
    ToolSpec,
)


class MemoryJournal:
    """A `RunJournal` that keeps the transcript as the store does.

    `events` notes each call by name. `arriving` is what `fold` and `close_or_fold` hand out, one
    batch at a time; `shorter` what `overflow` does. With `ended_after` set, every call after so
    many raises `TurnEnded`, as a stopped turn's does.
    """

    def __init__(self, history: Sequence[LLMMessage] = ()) -> None:
        self.transcript: list[LLMMessage] = list(history)
        self.events: list[str] = []
        self.attempts: list[Attempt] = []
        self.notices: list[str] = []
        self.said: list[str] = []
        self.results: dict[str, ToolResult] = {}
        self.outcome: str | None = None
        self.arriving: list[list[LLMMessage]] = []
        self.shorter: list[list[LLMMessage]] = []
        self.ended_after: int | None = None
        self.rounds_left: list[bool] = []
        self.running: set[str] = set()
        self._changed = anyio.Event()

    def _event(self, name: str) -> None:
        if self.outcome is not None:
            raise TurnEnded("memory")
        if self.ended_after is not None and len(self.events) >= self.ended_after:
            self.outcome = "stopped"
            raise TurnEnded("memory")
        self.events.append(name)

    async def decided(
        self, message: LLMMessage, notice: str | None, attempts: Sequence[Attempt]
    ) -> None:
        self._event("decided")
        assert message.tool_calls
        assert not transcript.open_calls(self.transcript), "the round before is still open"
        self.transcript.append(message)
        self.attempts += attempts
        if notice:
            self.notices.append(notice)

    async def started(self, call: ToolCall) -> None:
        self._event(f"started {call.name}")
        assert call.id in {open_call.id for open_call in transcript.open_calls(self.transcript)}
        self.running.add(call.id)

    async def finished(self, result: ToolResult) -> None:
        self._event(f"finished {result.name} {result.status}")
        assert result.call_id not in self.results, "a call has one result"
        self.results[result.call_id] = result
        self.running.discard(result.call_id)
        self._close_round()
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_result(self, call_id: str) -> None:
        while call_id not in self.results:
            await self._changed.wait()

    async def fold(self) -> Sequence[LLMMessage]:
        self._event("fold")
        return self._fold()

    async def close_or_fold(
        self, message: LLMMessage, attempts: Sequence[Attempt], *, rounds_left: bool
    ) -> Sequence[LLMMessage]:
        self._event("close_or_fold")
        assert message.content.strip()
        self.rounds_left.append(rounds_left)
        self.transcript.append(message)
        self.said.append(message.content)
        self.attempts += attempts
        folded = self._fold() if rounds_left else ()
        if not folded:
            self.outcome = "answered"
        return folded

    async def overflow(self) -> Sequence[LLMMessage] | None:
        self._event("overflow")
        if not self.shorter:
            return None
        self.transcript = list(self.shorter.pop(0))
        return tuple(self.transcript)

    async def close(self, text: str, outcome: str, attempts: Sequence[Attempt]) -> None:
        self._event("close")
        self.attempts += attempts
        self.closed(text, outcome)

    def closed(self, text: str, outcome: str) -> None:
        """Close as the store does: open calls get results, then the text."""
        for call in transcript.open_calls(self.transcript):
            started = call.id in self.running
            content = transcript.UNKNOWN_OUTCOME if started else transcript.NOT_RUN
            self.results[call.id] = ToolResult(call_id=call.id, name=call.name, content=content)
        self._close_round()
        self.transcript.append(LLMMessage(role="assistant", content=text))
        self.said.append(text)
        self.outcome = outcome

    def _close_round(self) -> None:
        """Results stand in the order of the calls."""
        at = (
            max(i for i, m in enumerate(self.transcript) if m.role == "assistant")
            if any(m.role == "assistant" for m in self.transcript)
            else None
        )
        if at is None:
            return
        del self.transcript[at + 1 :]
        for call in self.transcript[at].tool_calls:
            if result := self.results.get(call.id):
                self.transcript.append(
                    LLMMessage(
                        role="tool",
                        tool_call_id=result.call_id,
                        name=result.name,
                        content=result.content,
                    )
                )

    def _fold(self) -> Sequence[LLMMessage]:
        folded = self.arriving.pop(0) if self.arriving else []
        self.transcript += folded
        return tuple(folded)


class Notes:
    """A `Watcher` that notes phases and shows text as a screen would."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str]] = []
        self.screen = ""
        self.resets = 0

    def phase(self, phase: str, detail: str = "") -> None:
        self.phases.append((str(phase), detail))

    def delta(self, text: str) -> None:
        self.screen += text

    def reset(self) -> None:
        self.resets += 1
        self.screen = ""


Body = Callable[..., Awaitable[str]]


class FunctionTool:
    """A tool made of an async function of (arguments, context)."""

    def __init__(
        self,
        name: str,
        body: Body,
        *,
        parameters: JsonObject | None = None,
        timeout_s: float | None = None,
        effects: frozenset[Effect] = frozenset({Effect.NONE}),
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=f"Does what {name} does.",
            parameters=parameters or {"type": "object"},
            effects=effects,
        )
        self.timeout_s = timeout_s
        self._body = body

    async def run(self, arguments: JsonObject, context: object) -> str:
        return await self._body(arguments, context)


def saying(name: str, text: str) -> FunctionTool:
    async def body(arguments: JsonObject, context: object) -> str:
        return text

    return FunctionTool(name, body)


def user(text: str) -> LLMMessage:
    return LLMMessage(role="user", content=text)


def call(name: str, id: str = "c1", **arguments: Json) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)
