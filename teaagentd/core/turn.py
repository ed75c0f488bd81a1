"""One turn, from T1 to T5: begins, runs the agent, journals each step, and closes on every exit."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog

from teaagentd import transcript
from teaagentd.abc import Clock, MemoryEngine
from teaagentd.agent.runner import AgentRunner
from teaagentd.agent.wording import (
    BROKE,
    CONDEMNED,
    RESUMED,
    STOPPED,
    TIMED_OUT,
    spoken_span,
)
from teaagentd.commands import Prepare
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.compaction import Compactor
from teaagentd.core.context import ContextBuilder
from teaagentd.core.gate import Gate, Slot
from teaagentd.core.session import Session
from teaagentd.errors import StoreError, TurnEnded
from teaagentd.store import Store
from teaagentd.store.values import Begun, Closed, Folded, NewTurn, RunningTurn
from teaagentd.types import (
    Attempt,
    LLMMessage,
    OutboundMessage,
    Phase,
    SessionKey,
    ToolCall,
    ToolResult,
    TurnOutcome,
)

log = structlog.get_logger()

_CLOSE_CEILING_S = 30.0

Announce = Callable[[Sequence[OutboundMessage]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnServices:
    """What every turn works with, made once by the root."""

    store: Store
    bus: MessageBus
    feed: ActivityFeed
    context: ContextBuilder
    clock: Clock
    make_runner: Callable[[Turn], AgentRunner]
    announce: Announce
    compactor: Compactor
    memory: MemoryEngine | None = None
    timeout_s: float = 3600.0
    context_window: Callable[[], int | None] = lambda: None
    prepare: Mapping[str, Prepare] = field(default_factory=dict)
    """Who knows what a command answers and chooses, by its name."""

    def session(self, key: SessionKey) -> Session:
        return Session(key, store=self.store, write_note=self.context.note, memory=self.memory)

    def opening(self, content: str) -> LLMMessage:
        """The first user message of a direct turn, with its note."""
        return LLMMessage(role="user", content=content, note=self.context.opening_note())

    def budget_tokens(self) -> int | None:
        """How much history and waiting messages may come to: the window, less room to answer."""
        window = self.context_window()
        return None if window is None else window - min(window // 4, 8192)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEnd:
    """How a turn ended. `text` is every answer said to its caller; `exchange` what memory gets."""

    outcome: TurnOutcome
    text: str
    exchange: tuple[LLMMessage, ...] = ()


class Turn:
    """One live turn. It is the `RunJournal` of its run: each step is a commit point of the store,
    and what it returns is in the transcript."""

    def __init__(
        self,
        new: NewTurn,
        *,
        services: TurnServices,
        gate: Gate,
        barrier: Callable[[], int | None],
        may_fold: Callable[[], bool],
        depth: int = 0,
    ) -> None:
        self.id = new.id
        self.key = new.key
        self.origin = new.origin
        self.depth = depth
        self.session = services.session(new.key)
        self.watcher = services.feed.watcher(new.key, new.id)
        self.begun_at: float | None = None
        self.context_tokens = 0
        self.ended = anyio.Event()
        self._new = new
        self._services = services
        self._store = services.store
        self.slot = Slot(gate, on_pause=self._pause, on_resume=self._resume_clock)
        self._barrier = barrier
        self._may_fold = may_fold
        self._scope = anyio.CancelScope()
        self._remaining_s = services.timeout_s
        self._leaving: TurnOutcome | None = None
        self._stopped_at: float | None = None
        self._unclosed: tuple[str, TurnOutcome] | None = None
        self._stopped = anyio.Event()
        self._waits_for_slot = False
        self._begun: Begun | None = None
        self._end: TurnEnd | None = None
        self._said: list[str] = []
        self._exchange: list[LLMMessage] = []
        self._running_calls: set[str] = set()
        self._runner = services.make_runner(self)

    # -- its life -----------------------------------------------------------------------

    async def run(self, resumed: RunningTurn | None = None) -> TurnEnd | None:
        """Wait for a slot, begin, work, close. None when there was nothing to do. Whatever the
        exit, the turn's row is closed or left to be resumed, the slot is free, and one `done`
        phase is shown. Raises what kept it from beginning."""
        try:
            with self._scope:
                await self._take_slot()
                if await self._begin(resumed):
                    await self._work()
            if self._scope.cancelled_caught and self._leaving is None:
                self._leaving = "timeout"
        except TurnEnded:
            self._leaving = "stopped"
        except Exception:
            # The boundary that supervises a turn: whatever broke, its sender is told.
            if self._begun is None:
                raise
            log.exception("turn_broke")
            self._leaving = "failed"
        finally:
            self.slot.release()
            try:
                with anyio.CancelScope(shield=True):
                    await self._leave()
                if self.is_unclosed:
                    self.watcher.phase(Phase.WAITING, "for the store")
                    await self.close_in_time()
            finally:
                self.watcher.phase(Phase.DONE, self._end.outcome if self._end else "")
        return self._let_go_of_texts()

    def _let_go_of_texts(self) -> TurnEnd | None:
        """Its end, for whoever asked for it. A timer that was cancelled holds the turn itself until
        the event loop sees to it, and would hold all that was said."""
        end = self._end
        self._begun, self._end, self._exchange, self._said = None, None, [], []
        return end

    def stop(self, *, closed: bool = True) -> None:
        """Free what this turn holds. With `closed` the store has closed it already; without, the
        store could not: what has begun closes itself when it can, what has not stays."""
        if not closed and self._begun is None:
            return
        self._leaving = "stopped"
        self._stopped_at = anyio.current_time()
        if not closed:
            self._unclosed = (STOPPED, "stopped")
        self._scope.cancel()
        self._stopped.set()

    def overdue_s(self) -> float:
        """Seconds since it should have ended. One that waits for the store is not overdue."""
        if self._unclosed is not None:
            return 0.0
        end = self._scope.deadline if self._stopped_at is None else self._stopped_at
        return max(anyio.current_time() - end, 0.0)

    def unbooked(self) -> Sequence[Attempt]:
        """Requests that were made and are not in the books yet."""
        return self._runner.unbooked()

    def let_go(self) -> None:
        """It was closed in the store and will not end: what it holds is free without it."""
        self.slot.release()
        self.watcher.phase(Phase.DONE, "timeout")
        self.ended.set()

    def withdraw(self) -> None:
        """Do not begin, if it still waits for its slot: its rows stay pending."""
        if self._waits_for_slot:
            self._leaving = "interrupted"
            self._scope.cancel()

    async def _take_slot(self) -> None:
        if not self.slot.try_acquire():
            self.watcher.phase(Phase.WAITING, "for a slot")
            self._waits_for_slot = True
            await self.slot.acquire()
            self._waits_for_slot = False
        self.watcher.phase(Phase.CONTEXT)

    async def _begin(self, resumed: RunningTurn | None) -> bool:
        if resumed is not None:
            found = await self._store.resume(self.id, notice=RESUMED, failed=CONDEMNED)
            if isinstance(found, Closed):
                log.error("turn_condemned", attempt=resumed.attempt)
                self._closed(found, "failed", CONDEMNED)
                return False
        else:
            await self.session.recall()
            upto = self._barrier()
            known = self._services.bus.waiting(self.key, upto=upto)
            begun = await self._store.begin(
                self._new,
                upto=upto,
                budget_tokens=self._services.budget_tokens(),
                note=self.session.note,
            )
            if begun is None:
                self._services.bus.forget(self.key, known)
                return False
            found = begun
            self._services.bus.claimed(self.key, [row.id for row in found.claimed])
        self._begun = found
        self._runner.choose(found.model)
        self._services.announce(found.outbound)
        asked = {row.id for row in found.claimed}
        opened = [message for message in found.history if message.inbox_id in asked]
        self._exchange.extend(opened or found.history[-1:])
        self.begun_at = self._services.clock.monotonic()
        self._scope.deadline = anyio.current_time() + self._remaining_s
        return True

    async def _work(self) -> None:
        assert self._begun is not None
        history = self._begun.history
        prompt = await self._services.context.system_prompt(history, history[-1])
        compactor = self._services.compactor
        measured = compactor.measures.of(self.key, history)
        run = await self._runner.run(system=prompt.static, history=history, measured=measured)
        compactor.fitted(self.key, history[-1].id, run.prompt_tokens)
        self.context_tokens = run.context_tokens
        if self._end is None:
            # The run met the fence: the store has closed this turn under it.
            self._leaving = "stopped"

    async def _leave(self) -> None:
        """Close what is still open in the store. A shutdown leaves bus, cron and job turns to
        be resumed; a stop has closed the turn already."""
        if self._begun is None or self._end is not None or self._unclosed is not None:
            return
        match self._leaving:
            case "stopped" if self._runner.unbooked():
                self._unclosed = (STOPPED, "stopped")  # which only books: the fence is shut
            case "stopped":
                self._end = TurnEnd(outcome="stopped", text=STOPPED)
            case "timeout":
                limit = spoken_span(self._services.timeout_s)
                self._unclosed = (TIMED_OUT.format(limit=limit), "timeout")
            case "failed":
                self._unclosed = (BROKE, "failed")
            case _ if self.origin in ("bus", "cron", "job"):
                await self._park()
            case _:
                self._unclosed = ("This was interrupted.", "interrupted")
        await self._close_once()

    async def _park(self) -> None:
        """A planned end: the next start goes on with the turn and does not count this one."""
        try:
            await self._store.park(self.id, attempts=self._runner.unbooked())
        except StoreError as error:
            log.error("turn_not_parked", error=str(error))

    async def _close_once(self) -> None:
        if self._unclosed is None:
            return
        try:
            await self.close(*self._unclosed, self._runner.unbooked())
            log.info("turn_closed", outcome=self._unclosed[1])
        except TurnEnded:
            self._end = TurnEnd(outcome="stopped", text=STOPPED)
        except StoreError as error:
            log.error("turn_not_closed", error=str(error))
            return
        self._unclosed = None

    @property
    def is_unclosed(self) -> bool:
        """Whether it has ended, and the store does not know that yet."""
        return self._unclosed is not None

    async def close_in_time(self) -> None:
        """Close in spite of a failing disk: the turn holds its key, without a slot, until it is
        told to its sender. A shutdown meanwhile leaves it to the next start."""
        wait_s = 0.2
        while self._unclosed is not None:
            self._stopped = anyio.Event()
            with anyio.move_on_after(wait_s):
                await self._stopped.wait()
            await self._close_once()
            wait_s = min(wait_s * 2, _CLOSE_CEILING_S)

    # -- waiting without a slot ---------------------------------------------------------

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """Around what one of its calls waits for. Raises `TooManyParked`."""
        async with self.slot.waiting():
            self.watcher.phase(Phase.WAITING, what)
            yield

    def _pause(self) -> None:
        self._remaining_s = max(self._scope.deadline - anyio.current_time(), 0.0)
        self._scope.deadline = math.inf

    def _resume_clock(self) -> None:
        self._scope.deadline = anyio.current_time() + self._remaining_s

    def describe(self) -> str:
        """Phase and age in words, for `/status` and the drain."""
        shown = self._services.feed.phase_of(self.id)
        name = f"{shown.phase} {shown.detail}".strip() if shown else "starting"
        if self.begun_at is None:
            return name
        return f"{name}, for {spoken_span(self._services.clock.monotonic() - self.begun_at)}"

    # -- RunJournal ---------------------------------------------------------------------

    async def decided(
        self, message: LLMMessage, notice: str | None, attempts: Sequence[Attempt]
    ) -> None:
        outbound = await self._store.decide(self.id, message, notice=notice, attempts=attempts)
        self._services.announce(outbound)
        if notice:
            self.watcher.phase(Phase.NOTICE, notice)

    async def started(self, call: ToolCall) -> None:
        await self._store.start_call(self.id, call.id)
        self._running_calls.add(call.id)
        self.slot.call_opened()
        await self.slot.settle()

    async def finished(self, result: ToolResult) -> None:
        await self._store.finish_call(self.id, result)
        if result.call_id in self._running_calls:
            self._running_calls.discard(result.call_id)
            self.slot.call_closed()
            await self.slot.settle()

    async def fold(self) -> Sequence[LLMMessage]:
        if not self._may_fold() or not self._services.bus.pending(self.key, upto=self._barrier()):
            return ()
        await self.session.recall()
        folded = await self._store.fold(
            self.id,
            upto=self._barrier(),
            budget_tokens=self._services.budget_tokens(),
            note=self.session.note,
        )
        return self._take_in(folded)

    async def close_or_fold(
        self, message: LLMMessage, attempts: Sequence[Attempt], *, rounds_left: bool
    ) -> Sequence[LLMMessage]:
        await self.session.recall()
        result = await self._store.close_or_fold(
            self.id,
            message,
            attempts=attempts,
            may_fold=rounds_left and self._may_fold(),
            upto=self._barrier(),
            budget_tokens=self._services.budget_tokens(),
            note=self.session.note,
        )
        self._exchange.append(message)
        if isinstance(result, Closed):
            self._closed(result, "answered", message.content)
            return ()
        self._said.append(message.content)
        return self._take_in(result)

    async def overflow(self) -> Sequence[LLMMessage] | None:
        return await self._services.compactor.within_turn(self.key, self.id)

    async def close(self, text: str, outcome: TurnOutcome, attempts: Sequence[Attempt]) -> None:
        closed = await self._store.close(self.id, text=text, outcome=outcome, attempts=attempts)
        self._closed(closed, outcome, text)

    def _take_in(self, folded: Folded) -> Sequence[LLMMessage]:
        self._services.announce(folded.outbound)
        if folded.messages:
            self._services.bus.claimed(self.key, [row.id for row in folded.claimed])
            self._exchange.extend(folded.messages)
            self.watcher.phase(Phase.STEERING, f"{len(folded.messages)} more")
        return folded.messages

    def _closed(self, closed: Closed, outcome: TurnOutcome, text: str) -> None:
        self._end = TurnEnd(
            outcome=outcome,
            text=transcript.spoken((*self._said, text)),
            exchange=tuple(self._exchange) if outcome == "answered" else (),
        )
        self._services.announce(closed.outbound)
