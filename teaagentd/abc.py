"""The protocols between the parts. Each states order, what can be lost and what is raised."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from teaagentd.types import (
    Address,
    Attachment,
    Attempt,
    InboundMessage,
    JsonObject,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    Part,
    Planned,
    Receipt,
    SessionKey,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnOutcome,
)


class Clock(Protocol):
    """Wall and monotonic time; tests give their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


OnChunk = Callable[[str], None]
"""Gets text deltas in order. Must not block, raise, or call back into the adapter."""


class LLMAdapter(Protocol):
    """One model server. `complete` may be called from many turns at once.

    Cancelling `complete` closes the connection and is effective within a second. An adapter
    never retries by itself, and marks a reply as `restated` when it leaves out some text that
    `on_chunk` was given.
    """

    name: str
    """The provider's name, for the books and the logs."""
    model: str
    native_tools: bool
    """Whether the server has tool calling of its own; `decisions = "auto"` follows it."""
    context_window: int | None
    """Tokens, None while unknown."""
    vision: bool
    """Whether it may be shown pictures: true until it is known that it cannot."""
    small: bool
    """Whether it is a very small model, which needs brief instructions and bounded answers."""

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        """The whole answer. Raises a `ProviderError` and nothing else but cancellation."""

    async def warm(self) -> None:
        """Prepare what the first request needs and nothing else: imports, clients. Called once
        the daemon is ready; must not block the event loop. Raises nothing of the network."""

    async def aclose(self) -> None:
        """Release connections and processes. Idempotent."""


class Inbox(Protocol):
    """Where a channel posts. `publish` returns after the commit; only then may the channel
    acknowledge. Raises `BusFull`, `InvalidMessage`, `ExternalIdConflict`, `StoreUnavailable`."""

    async def publish(self, message: InboundMessage) -> object: ...

    async def keep(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        """Keep a file that came with a message, before that is published with it. Raises
        `FileRefused`, whose text says to the sender why it was not kept, and
        `StoreUnavailable`."""


class Channel(Protocol):
    """A way in and out. Parts of one chat are sent in order, one at a time; `send` may be
    called for several chats at once."""

    name: str
    limit: int
    """The longest part, in characters."""
    idempotent: bool
    """Whether the same `Part.idempotency_key` sent twice arrives once."""

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled. What it raises is logged and it is started again."""

    async def send(self, part: Part) -> Receipt:
        """Send one part. Raises `DeliveryRefused`, `DeliveryDelayed`, `DeliveryUnknown`; any
        other exception counts as unknown."""


class ToolContext(Protocol):
    """What a running call may know of its turn, and ask of it."""

    session_key: SessionKey
    turn_id: str
    call_id: str
    clock: Clock

    def progress(self, detail: str) -> None:
        """Show a line of progress to whoever watches. Never blocks, never raises."""

    async def attach(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        """Keep a file, and show it to the model with the call's result if it can be shown.
        Raises `ToolError` for one that is not kept."""

    def waiting(self, what: str) -> AbstractAsyncContextManager[None]:
        """The call waits for a person or a child run: the turn's slot is given back while every
        open call waits, and its deadline stands still. Leaving waits for a slot again.
        Raises `TooManyParked`."""


@runtime_checkable
class Tool(Protocol):
    """One tool. `run` returns the text for the model; a `ToolError` becomes an error result,
    any other exception too, and is logged. Cancelled at its deadline; must then end."""

    spec: ToolSpec
    timeout_s: float | None
    """Seconds; None takes the configured default."""

    async def run(self, arguments: JsonObject, context: ToolContext) -> str: ...


class MemoryEngine(Protocol):
    """Long-term memory. Both may fail: the turn goes on without, and the failure is logged."""

    async def recall(self, key: SessionKey, text: str) -> Sequence[str]:
        """Memories worth showing beside `text`, best first."""

    async def remember(self, key: SessionKey, exchange: Sequence[LLMMessage]) -> None:
        """Take in one completed exchange."""


class RunJournal(Protocol):
    """What a run tells of itself, before it goes on. A turn of the loop keeps it in the store;
    a library run in its own database. Every method returns after its commit and raises
    `TurnEnded` if the turn was closed meanwhile, `attempts` booked all the same: the run then
    ends without another word.
    """

    async def decided(
        self, message: LLMMessage, notice: str | None, attempts: Sequence[Attempt]
    ) -> None:
        """T2: an assistant message that has calls; `notice` is delivered at once."""

    async def started(self, call: ToolCall) -> None:
        """T3: the call is about to run. Nothing of it happens before this returns."""

    async def finished(self, result: ToolResult) -> None:
        """T3: its result. Also given for a call that never started (`not_run`)."""

    async def fold(self) -> Sequence[LLMMessage]:
        """Between rounds: messages that arrived meanwhile, now part of the transcript."""

    async def close_or_fold(
        self, message: LLMMessage, attempts: Sequence[Attempt], *, rounds_left: bool
    ) -> Sequence[LLMMessage]:
        """T4/T5: the model answered. Empty: the turn is closed with it. Else `message` was
        delivered as an interim answer and these came in: the run goes on with both."""

    async def overflow(self) -> Sequence[LLMMessage] | None:
        """The history did not fit. A shorter one to go on with, or None."""

    async def close(self, text: str, outcome: TurnOutcome, attempts: Sequence[Attempt]) -> None:
        """Every exit but an answer: the turn is closed with `text`; waiting messages stay."""


class SpendingGate(Protocol):
    """Asked before every request; the one place that can refuse for money."""

    async def reserve(self, planned: Planned, ended: Sequence[Attempt]) -> int:
        """Book those of the `ended` requests that are not yet, and set aside what the `planned`
        one may cost, in one commit. Waits for others where that would pass a cap only together
        with what they have set aside. Returns what the request's attempts are to be booked with;
        until then it counts as spent. Raises `SpendingRefused`: then nothing was set aside."""

    async def settle(self, ended: Sequence[Attempt]) -> None:
        """Book those that are not yet, later if the store cannot now. Raises nothing."""


class Watcher(Protocol):
    """Where a run shows what it does. Never blocks, never raises."""

    def phase(self, phase: str, detail: str = "") -> None: ...

    def delta(self, text: str) -> None:
        """A piece of the answer, as it streams."""

    def reset(self) -> None:
        """What was streamed since the last request began is void: it starts over."""


Deliver = Callable[[Address, str], Awaitable[None]]
