"""Doubles for what is truly outside: a scripted model, a channel in memory, a clock that is set.

Shipped, so that authors of tools, channels and providers test against the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.lowlevel
import orjson

from teaagentd import transcript
from teaagentd.abc import Clock, Inbox, OnChunk, SystemClock
from teaagentd.errors import ProviderError, RequestRefused
from teaagentd.types import (
    Attempt,
    InboundMessage,
    JsonObject,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    Part,
    Receipt,
    ToolCall,
    Usage,
)


class FakeClock:
    """A clock that stands still until it is advanced."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic: float = 1000.0) -> None:
        self._now_ms = now_ms
        self._monotonic = monotonic

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a time server does; monotonic time goes on."""
        self._now_ms += round(seconds * 1000)


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has replies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A reply that breaks off: `text` is streamed, then `error` raised."""

    text: str
    error: ProviderError


Scripted: TypeAlias = (
    "str | ToolCall | Sequence[ToolCall] | LLMResponse | Broken | BaseException | ReplyFunction"
)
ReplyFunction: TypeAlias = Callable[[LLMRequest], Awaitable[Scripted]]


class ScriptedModel:
    """An `LLMAdapter` that gives the n-th reply of `replies` to the n-th request.

    A reply is a text; one or several `ToolCall`s; an `LLMResponse`, given as it stands; an
    exception, raised; `Broken`, a stream that breaks off; or an async function of the request
    that returns any of these, which may wait first. A request that asks for JSON (it has a
    response schema) gets a text or a call as the JSON object that means it, unless the text is
    a JSON object already. Text is streamed in pieces of `chunk` characters.

    Illegal messages are refused with `RequestRefused`, as a strict provider does, and noted in
    `refused`. After the last reply `default` is given; without one, `ScriptExhausted` is raised.
    """

    def __init__(
        self,
        replies: Iterable[Scripted] = (),
        *,
        default: Scripted | None = None,
        name: str = "scripted",
        model: str = "scripted-1",
        native_tools: bool = True,
        vision: bool = False,
        context_window: int | None = None,
        chunk: int = 16,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.native_tools = native_tools
        self.vision = vision
        self.small = False
        self.context_window = context_window
        self.requests: list[LLMRequest] = []
        self.refused: list[str] = []
        self.closed = False
        self._replies = deque(replies)
        self._default = default
        self._chunk = chunk
        self._clock = clock or SystemClock()
        self._asked = anyio.Event()

    def add(self, *replies: Scripted) -> None:
        """Lengthen the script."""
        self._replies.extend(replies)

    async def wait_asked(self, count: int) -> LLMRequest:
        """Wait until `count` requests were asked in all; the newest of them."""
        while len(self.requests) < count:
            await self._asked.wait()
        return self.requests[count - 1]

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        self.requests.append(request)
        self._asked.set()
        self._asked = anyio.Event()
        started = self._clock.now_ms()
        await anyio.lowlevel.checkpoint()
        if problem := illegal(request.messages):
            self.refused.append(problem)
            error = RequestRefused(f"illegal request: {problem}", provider=self.name, status=400)
            raise self._booked(error, request, started)
        reply = self._next()
        while callable(reply):
            reply = await reply(request)
        if isinstance(reply, Broken):
            await self._stream(reply.text, on_chunk)
            reply.error.streamed = on_chunk is not None
            raise self._booked(reply.error, request, started)
        if isinstance(reply, ProviderError):
            raise self._booked(reply, request, started)
        if isinstance(reply, BaseException):
            raise reply
        response = self._response(reply, request, started)
        await self._stream(response.content, on_chunk)
        return response

    async def warm(self) -> None: ...

    async def aclose(self) -> None:
        self.closed = True

    def _next(self) -> Scripted:
        if self._replies:
            return self._replies.popleft()
        if self._default is None:
            raise ScriptExhausted(f"request {len(self.requests)} has no scripted reply")
        return self._default

    async def _stream(self, text: str, on_chunk: OnChunk | None) -> None:
        for at in range(0, len(text), self._chunk):
            if on_chunk is not None:
                on_chunk(text[at : at + self._chunk])
            await anyio.lowlevel.checkpoint()

    def _response(
        self, reply: str | ToolCall | Sequence[ToolCall] | LLMResponse, request: LLMRequest, at: int
    ) -> LLMResponse:
        usage = Usage(input_tokens=transcript.estimate_request_tokens(request.messages))
        if isinstance(reply, LLMResponse):
            return reply
        if isinstance(reply, ToolCall):
            reply = (reply,)
        if isinstance(reply, str):
            calls: tuple[ToolCall, ...] = ()
            content = reply
            if request.response_schema is not None and not _is_object(reply):
                content = _json({"action": "answer", "text": reply})
        else:
            calls, content = tuple(reply), ""
            if request.response_schema is not None:
                first = calls[0]
                content = _json({"action": first.name, "arguments": first.arguments})
                calls = ()
        usage = Usage(
            input_tokens=usage.input_tokens,
            cached_tokens=0,
            output_tokens=transcript.estimate_tokens(content),
        )
        return LLMResponse(
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            usage=usage,
            provider=self.name,
            model=self.model,
            attempts=(self._attempt(request, at, usage=usage),),
        )

    def _booked(self, error: ProviderError, request: LLMRequest, at: int) -> ProviderError:
        error.provider = error.provider or self.name
        error.attempts = (self._attempt(request, at, error=type(error).__name__),)
        return error

    def _attempt(
        self, request: LLMRequest, at: int, *, usage: Usage | None = None, error: str | None = None
    ) -> Attempt:
        return Attempt(
            provider=self.name,
            model=self.model,
            purpose=request.purpose,
            usage=usage,
            error=error,
            started_at=at,
            duration_ms=self._clock.now_ms() - at,
        )


def illegal(messages: Sequence[LLMMessage]) -> str | None:
    """Why a strict provider refuses these messages, or None when it takes them."""
    seen: set[str] = set()
    waiting: list[str] = []
    spoken = False
    for index, message in enumerate(messages):
        where = f"message {index}"
        if message.role == "tool":
            if not waiting:
                return f"{where}: a tool message without its call"
            if message.tool_call_id != waiting.pop(0):
                return f"{where}: the result of {message.tool_call_id!r} is out of place"
            if not message.content:
                return f"{where}: an empty tool message"
            continue
        if waiting:
            return f"{where}: calls without a result before it: {waiting}"
        if message.role == "system":
            if spoken:
                return f"{where}: a system message after the first ones"
            continue
        if not spoken and message.role != "user":
            return f"{where}: the first message must be the user's"
        spoken = True
        if not (message.content or message.note or message.tool_calls or message.attachments):
            return f"{where}: an empty {message.role} message"
        for call in message.tool_calls:
            if not call.id or call.id in seen:
                return f"{where}: the call id {call.id!r} is empty or repeated"
            seen.add(call.id)
            waiting.append(call.id)
    if waiting:
        return f"the end: calls without a result: {waiting}"
    return None if spoken else "no user message"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _json(value: JsonObject) -> str:
    return orjson.dumps(value).decode()


class MemoryChannel:
    """A `Channel` in memory.

    `sent` holds every part that `send` was called with, `arrived` those that a person would
    see (an idempotent channel shows a repeated key once). `failures` is consumed one by one, a
    None lets a send pass; `hold` set to an event keeps every send waiting for it.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        limit: int = 4096,
        idempotent: bool = False,
        failures: Iterable[Exception | None] = (),
    ) -> None:
        self.name = name
        self.limit = limit
        self.idempotent = idempotent
        self.failures = deque(failures)
        self.hold: anyio.Event | None = None
        self.sent: list[Part] = []
        self.arrived: list[Part] = []
        self._keys: set[str] = set()
        self._inbox: Inbox | None = None
        self._changed = anyio.Event()

    async def run(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._signal()
        try:
            await anyio.sleep_forever()
        finally:
            self._inbox = None

    async def post(
        self,
        content: str,
        *,
        chat_id: str = "chat",
        sender_id: str | None = "person",
        external_id: str | None = None,
    ) -> object:
        """Publish a message as if a person had sent it; what `publish` returned. Waits for
        `run` first."""
        while self._inbox is None:
            await self._changed.wait()
        return await self._inbox.publish(
            InboundMessage(
                channel=self.name,
                chat_id=chat_id,
                content=content,
                sender_id=sender_id,
                external_id=external_id,
            )
        )

    async def send(self, part: Part) -> Receipt:
        self.sent.append(part)
        self._signal()
        if self.hold is not None:
            await self.hold.wait()
        failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            raise failure
        if not (self.idempotent and part.idempotency_key in self._keys):
            self.arrived.append(part)
        self._keys.add(part.idempotency_key)
        self._signal()
        return Receipt(external_id=f"{self.name}-{len(self.sent)}")

    async def wait_arrived(self, count: int) -> Sequence[Part]:
        """Wait until `count` parts have arrived in all; all of them."""
        while len(self.arrived) < count:
            await self._changed.wait()
        return tuple(self.arrived)

    async def wait_sent(self, count: int) -> Sequence[Part]:
        """Wait until `send` was called `count` times in all; the parts."""
        while len(self.sent) < count:
            await self._changed.wait()
        return tuple(self.sent)

    def _signal(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
