"""What stands around the core in a simulation: model, tools and channels with their own dice."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from teaagentd.abc import Clock, Inbox, OnChunk, ToolContext
from teaagentd.errors import (
    ContextOverflow,
    DeliveryDelayed,
    DeliveryRefused,
    DeliveryUnknown,
    ProviderUnavailable,
    RequestRefused,
    TeaAgentError,
    ToolError,
)
from teaagentd.providers.prices import Stated
from teaagentd.testing import illegal
from teaagentd.types import (
    Attempt,
    Effect,
    JsonObject,
    LLMRequest,
    LLMResponse,
    Part,
    Receipt,
    ToolCall,
    ToolSpec,
    Usage,
)

_TOOLS = ("quick", "slow", "raises", "never", "waits", "calls")


@dataclass
class Record:
    """What was seen from outside, over all processes of one life."""

    seed: str
    requests: list[LLMRequest] = field(default_factory=list)
    sends: list[tuple[Part, str]] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    rewritten: list[int] = field(default_factory=list)
    """After how many requests a history was changed by an erasure."""
    again: set[int] = field(default_factory=set)
    """Texts that an operator had delivered again, which breaks their order."""
    called: set[str] = field(default_factory=set)
    """Sessions whose answers a turn of another one may have been given by its tool."""
    seen: set[str] = field(default_factory=set)
    """Kinds of things that happened, for the figures."""

    def dice(self, *what: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *what))))

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def note(self, at: float, text: str) -> None:
        self.trace.append(f"{at:9.2f} s  {text}")


class Model:
    """Answers, calls tools, fails, is slow: as its dice say for this very request."""

    name = "simulated"
    model = "dice"
    native_tools = True
    vision = False
    small = False

    def __init__(
        self, record: Record, now: Callable[[], float], window: int | None, clock: Clock
    ) -> None:
        self.context_window = window
        self._clock = clock
        self._record = record
        self._now = now
        self._tries: dict[str, int] = {}

    async def warm(self) -> None: ...

    async def aclose(self) -> None: ...

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        record = self._record
        record.requests.append(request)
        if problem := illegal(request.messages):
            record.fault(f"an illegal request: {problem}")
        last = request.messages[-1]
        name = f"{request.purpose} {len(request.messages)} {last.content[-60:]}"
        self._tries[name] = self._tries.get(name, 0) + 1
        dice = record.dice("model", name, self._tries[name])
        await anyio.sleep(dice.choice((0.01, 0.1, 1.0, 5.0, 40.0)) * dice.random())
        kind = dice.choices(
            ("answer", "calls", "transient", "refused", "overflow", "blank", "hangs"),
            (60, 34, 6, 3, 2, 3, 2),
        )[0]
        if kind == "calls" and (request.tool_choice == "none" or not request.tools):
            kind = "answer"
        record.seen.add(f"model {kind}")
        record.note(self._now(), f"  model: {kind} to {request.purpose} {last.content[-40:]!r}")
        attempt = self._attempt(request, kind)
        if kind == "hangs":
            await anyio.sleep(4000)
        if kind in ("transient", "refused", "overflow"):
            raise self._failure(kind, attempt)
        if kind == "calls":
            return self._calls(dice, name, attempt)
        text = "" if kind == "blank" else f"answer to {last.content[-40:]!r}"
        for piece in text.split("o"):
            if on_chunk is not None:
                on_chunk(piece)
            await anyio.sleep(dice.random() * 0.05)
        return LLMResponse(
            content=text, usage=_USAGE, provider=self.name, model=self.model, attempts=(attempt,)
        )

    def _failure(self, kind: str, attempt: Attempt) -> TeaAgentError:
        details: dict[str, Any] = {"provider": self.name, "attempts": (attempt,)}
        if kind == "transient":
            return ProviderUnavailable("overloaded", **details)
        if kind == "refused":
            return RequestRefused("no", **details)
        return ContextOverflow("too long", **details)

    def _calls(self, dice: random.Random, name: str, attempt: Attempt) -> LLMResponse:
        calls = tuple(
            ToolCall(
                id=f"c{len(self._record.requests)}x{dice.getrandbits(32):x}",
                name=dice.choices(_TOOLS, (40, 25, 10, 4, 12, 9))[0],
                arguments={"n": dice.getrandbits(30)},
            )
            for _ in range(dice.choice((1, 1, 1, 2, 3)))
        )
        self._record.seen.update(f"tool {call.name}" for call in calls)
        return LLMResponse(
            content="one moment" if dice.random() < 0.3 else "",
            tool_calls=calls,
            finish_reason="tool_calls",
            usage=_USAGE,
            provider=self.name,
            model=self.model,
            attempts=(attempt,),
        )

    def _attempt(self, request: LLMRequest, kind: str) -> Attempt:
        return Attempt(
            provider=self.name,
            model=self.model,
            purpose=request.purpose,
            usage=_USAGE if kind in _REPLIES else None,
            error=None if kind in _REPLIES else kind,
            started_at=self._clock.now_ms(),
            duration_ms=1,
        )


_USAGE = Usage(input_tokens=10, cached_tokens=0, output_tokens=5)
_REPLIES = ("answer", "calls", "blank")
A_CENT_AN_ANSWER = Stated(input=0, output=2000)


class SimTool:
    """One of the tools; what it does is written down, and never done twice."""

    timeout_s: float | None = 30.0

    def __init__(
        self,
        name: str,
        record: Record,
        started: Callable[[str], bool],
        direct: Callable[[str, str], Awaitable[str]],
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=name,
            parameters={"type": "object"},
            effects=frozenset({Effect.NONE}),
        )
        self._record = record
        self._started = started
        self._direct = direct

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        record, call = self._record, context.call_id
        if not self._started(call):
            record.fault(f"call {call} runs and is not marked as started")
        if call in record.effects:
            record.fault(f"call {call} runs a second time")
        record.effects.append(call)
        dice = record.dice("tool", call)
        match self.spec.name:
            case "slow":
                await anyio.sleep(dice.random() * 25)
            case "raises":
                await anyio.sleep(dice.random())
                raise ToolError("it went wrong")
            case "never":
                await anyio.sleep_forever()
            case "waits":
                async with context.waiting("someone"):
                    await anyio.sleep(dice.random() * 60)
            case "calls":
                chat = dice.choice(("child", "anna", "bert"))
                record.called.add(f"api:{chat}")
                try:
                    return await self._direct(f"child of {call[:6]}", f"api:{chat}")
                except TeaAgentError as error:
                    record.seen.add(type(error).__name__)
                    return str(error)
            case _:
                await anyio.sleep(0.01)
        return f"result of {call}"


class SimChannel:
    """Sends, refuses, delays, or leaves it open; what arrived is written down outside."""

    limit = 40

    def __init__(
        self, name: str, *, idempotent: bool, record: Record, now: Callable[[], float]
    ) -> None:
        self.name = name
        self._now = now
        self.idempotent = idempotent
        self._record = record
        self._tries: dict[str, int] = {}
        self._refused = record.dice("refused").choice((4, 4, 60))

    async def run(self, inbox: Inbox) -> None:
        dice = self._record.dice("channel", self.name)
        while dice.random() < 0.3:
            await anyio.sleep(dice.random() * 400)
            if dice.random() < 0.5:
                raise RuntimeError("the connection broke")
        await anyio.sleep_forever()

    async def send(self, part: Part) -> Receipt:
        record = self._record
        tries = self._tries[part.idempotency_key] = self._tries.get(part.idempotency_key, 0) + 1
        dice = record.dice("send", part.idempotency_key, tries, part.possible_repeat)
        await anyio.sleep(dice.random() * dice.choice((0.01, 1.0, 30.0)))
        outcome = dice.choices(("sent", "refused", "delayed", "unknown", "lost"), (80, 4, 6, 3, 3))[
            0
        ]
        record.seen.add(f"send {outcome}")
        where = f"{part.address.chat_id}, text {part.outbound_id}, part {part.index}"
        record.note(self._now(), f"  send: {outcome} to {where}: {part.content!r}")
        if outcome in ("sent", "unknown"):
            record.sends.append((part, outcome))
        if outcome == "refused":
            raise DeliveryRefused("no such chat")
        if outcome == "delayed":
            raise DeliveryDelayed("slow down", wait_s=dice.choice((None, 1.0, 50.0)))
        if outcome in ("unknown", "lost"):
            raise DeliveryUnknown("no answer")
        await anyio.sleep(dice.random() * 0.1)
        return Receipt()
