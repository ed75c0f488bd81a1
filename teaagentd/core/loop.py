"""The loop: one live turn per session key, overflow as steering, a cap on how many work at once."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskGroup

from teaagentd.agent.wording import INTERRUPTED, OUT_OF_HAND
from teaagentd.commands import Command, answer
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.gate import Gate
from teaagentd.core.turn import Turn, TurnEnd, TurnServices
from teaagentd.errors import (
    ShuttingDown,
    StoreError,
    StoreUnavailable,
    ToolError,
    TurnEnded,
    TurnNotAnswered,
)
from teaagentd.store import Store
from teaagentd.store.values import Accepted, Commanded, NewTurn, RunningTurn
from teaagentd.transcript import clean_key
from teaagentd.types import (
    NOT_BEGUN,
    Activity,
    Address,
    InboundMessage,
    Phase,
    SessionKey,
    TurnOrigin,
)
from teaagentd.wait_graph import WaitGraph

log = structlog.get_logger()

_MAX_DEPTH = 8
_RETRY_FLOOR_S = 1.0
_RETRY_CEILING_S = 30.0

_current_turn: ContextVar[Turn | None] = ContextVar("teaagentd_turn", default=None)


@dataclass(eq=False, slots=True)
class _Ticket:
    """A direct turn's place in the order of its key: after the rows up to `barrier`."""

    barrier: int
    called: anyio.Event = field(default_factory=anyio.Event)
    refused: bool = False


@dataclass(eq=False, slots=True)
class _Lane:
    """One session key's work: whoever sets `busy` owns the key until it calls `_release`."""

    key: SessionKey
    busy: bool = False
    turn: Turn | None = None
    tickets: deque[_Ticket] = field(default_factory=deque)
    failures: int = 0

    def barrier(self) -> int | None:
        """Rows after this id wait for the oldest direct turn; None when none waits."""
        return self.tickets[0].barrier if self.tickets else None


class Loop:
    """Turns accepted messages and direct requests into turns.

    `kick` is the one place that starts work for a key. It runs after each accepted message and
    after each release, so no wake-up is lost, and never awaits between look and act.
    """

    def __init__(
        self,
        *,
        bus: MessageBus,
        store: Store,
        gate: Gate,
        feed: ActivityFeed,
        services: TurnServices,
    ) -> None:
        self._bus = bus
        self._store = store
        self._gate = gate
        self._feed = feed
        self._services = services
        self._lanes: dict[SessionKey, _Lane] = {}
        self._live: dict[str, Turn] = {}
        self._waits = WaitGraph()
        self._line: deque[tuple[_Lane, RunningTurn]] = deque()
        self._workers: TaskGroup | None = None
        self._background = 0
        self._background_idle = anyio.Event()
        self._taken_up = anyio.Event()
        self._draining = False
        self._exempt: str | None = None
        self._quiet = anyio.Event()
        bus.handle_commands(self._command)

    def use(self, services: TurnServices) -> None:
        """Turns that begin from now on work with `services`; those at work keep theirs."""
        self._services = services

    async def outlasted(self) -> None:
        """Wait until every turn that is live now has ended."""
        for turn in self.live():
            await turn.ended.wait()

    # -- the bus's way in ---------------------------------------------------------------

    async def run(self) -> None:
        """Resume what an earlier run left, then answer the bus until cancelled."""
        async with anyio.create_task_group() as workers:
            self._workers = workers
            try:
                await self._at_last(self._resume_all)
                self._taken_up.set()
                await self._at_last(self._bus.load)
                while True:
                    for key in await self._bus.wait():
                        self.kick(key)
            finally:
                self._workers = None
                self._draining = True
                self._taken_up.set()
                workers.cancel_scope.cancel()

    def kick(self, key: SessionKey) -> None:
        """Start work for `key` if it is free: the rows before the oldest waiting direct turn,
        else that direct turn, else whatever is pending. If it is busy, what waits in the inbox
        is folded into its turn."""
        lane = self._lane(key)
        if lane.busy:
            return
        ticket = lane.tickets[0] if lane.tickets else None
        may_serve = self._workers is not None and not self._draining
        if may_serve and self._bus.pending(key, upto=lane.barrier()):
            lane.busy = True
            assert self._workers is not None
            self._workers.start_soon(self._serve, lane, name=f"turn {key}")
        elif ticket is not None:
            lane.busy = True
            lane.tickets.popleft()
            ticket.called.set()
        else:
            del self._lanes[key]

    async def _serve(self, lane: _Lane) -> None:
        """One bus turn of a key that this task owns."""
        turn = self._new_turn(lane, NewTurn(id=uuid4().hex, key=lane.key, origin="bus"))
        try:
            if not self._draining:
                await self._run_turn(lane, turn)
            lane.failures = 0
        except Exception as error:
            # What broke before T1 left the rows pending: they are tried again, with pauses.
            lane.failures += 1
            wait_s = min(_RETRY_FLOOR_S * 2**lane.failures, _RETRY_CEILING_S)
            log.error("turn_not_begun", session=str(lane.key), error=repr(error), retry_s=wait_s)
            pause = self._feed.watcher(lane.key, uuid4().hex)
            pause.phase(Phase.WAITING, f"{NOT_BEGUN}{error}")
            await anyio.sleep(wait_s)
            pause.phase(Phase.DONE)
        finally:
            self._release(lane)

    # -- direct turns -------------------------------------------------------------------

    async def process_direct(
        self,
        content: str,
        session_key: str | SessionKey,
        *,
        origin: TurnOrigin = "direct",
        deliver_to: Address | None = None,
    ) -> str:
        """Run one turn outside the bus and return its answer.

        On a busy key it waits in the order of arrival, before rows accepted later. Cancelling
        it gives up the place or ends the turn. Raises `DirectTurnDeadlock` on the caller's own
        or an ancestor's key or in a ring, `TooManyParked`, `ShuttingDown`, and
        `TurnNotAnswered` when the turn ended otherwise than with an answer.
        """
        key = SessionKey.parse(session_key) if isinstance(session_key, str) else session_key
        key = clean_key(key)
        new = NewTurn(id=uuid4().hex, key=key, origin=origin, deliver_to=deliver_to)
        return await self._direct(new, content)

    async def process_ephemeral(self, content: str) -> str:
        """Run one turn that sees no history, leaves none, and touches no memory. Raises as
        `process_direct` does."""
        turn_id = uuid4().hex
        key = SessionKey(channel="ephemeral", chat_id=turn_id)
        return await self._direct(NewTurn(id=turn_id, key=key, origin="ephemeral"), content)

    async def _direct(self, new: NewTurn, content: str) -> str:
        """Run `new` when its key is free, with `content` as its opening message; its answer."""
        async with self._as_child(new.key) as parent:
            if self._workers is not None and not self._taken_up.is_set():
                # What was left over at the start has its key first.
                await self._taken_up.wait()
                if self._draining:
                    raise ShuttingDown
            lane = self._lane(new.key)
            await self._own(lane)
            turn: Turn | None = None
            try:
                opened = replace(
                    new,
                    opening=self._services.opening(content),
                    parent_turn_id=parent.id if parent else None,
                )
                turn = self._new_turn(lane, opened)
                end = await self._run_turn(lane, turn)
            finally:
                if turn is not None and turn.is_unclosed and self._workers is not None:
                    self._workers.start_soon(self._close_alone, lane, turn)
                else:
                    self._release(lane)
        if end is None or end.outcome != "answered":
            outcome = end.outcome if end else "interrupted"
            raise TurnNotAnswered(outcome, end.text if end else INTERRUPTED)
        return end.text

    async def _close_alone(self, lane: _Lane, turn: Turn) -> None:
        """Its caller has gone, and the store does not know that it has ended."""
        try:
            await turn.close_in_time()
        finally:
            self._release(lane)

    @asynccontextmanager
    async def _as_child(self, key: SessionKey) -> AsyncIterator[Turn | None]:
        """Around a direct turn: its caller's turn, if any, waits without a slot."""
        if self._draining:
            raise ShuttingDown
        parent = _current_turn.get()
        if parent is None:
            yield None
            return
        if parent.depth >= _MAX_DEPTH:
            raise ToolError(f"direct turns may nest at most {_MAX_DEPTH} deep")
        with self._waits.waiting(str(parent.key), str(key)):
            async with parent.waiting(f"a turn on {key}"):
                yield parent

    async def _own(self, lane: _Lane) -> None:
        """Wait until the key is ours, in the order of arrival."""
        if not lane.busy and not lane.tickets and not self._owed(lane):
            lane.busy = True
            return
        ticket = _Ticket(barrier=self._bus.newest_id)
        lane.tickets.append(ticket)
        self.kick(lane.key)
        try:
            await ticket.called.wait()
        except BaseException:
            if ticket in lane.tickets:
                lane.tickets.remove(ticket)
                self.kick(lane.key)
            elif not ticket.refused:
                self._release(lane)
            raise
        if ticket.refused:
            raise ShuttingDown

    def _owed(self, lane: _Lane) -> bool:
        """Whether rows of the key were accepted before and are still to be served."""
        return self._workers is not None and self._bus.pending(lane.key)

    # -- one turn, whatever its origin --------------------------------------------------

    def _new_turn(self, lane: _Lane, new: NewTurn) -> Turn:
        turn = Turn(
            new,
            services=self._services,
            gate=self._gate,
            barrier=lane.barrier,
            may_fold=lambda: not self._draining,
            depth=parent.depth + 1 if (parent := _current_turn.get()) else 0,
        )
        lane.turn = turn
        return turn

    async def _run_turn(
        self, lane: _Lane, turn: Turn, resumed: RunningTurn | None = None
    ) -> TurnEnd | None:
        self._live[turn.id] = turn
        parent = _current_turn.set(turn)
        compactor = self._services.compactor
        try:
            if resumed is None:
                await compactor.before_turn(turn.key)
            with structlog.contextvars.bound_contextvars(session=str(turn.key), turn=turn.id):
                end = await turn.run(resumed)
        finally:
            _current_turn.reset(parent)
            self._live.pop(turn.id, None)
            turn.ended.set()
            lane.turn = None
            self._check_quiet()
        if end is not None and turn.origin != "ephemeral":
            if end.exchange:
                await self._beside(lambda: turn.session.remember(end.exchange))
            if compactor.is_due(turn.key, turn.context_tokens):
                await self._beside(lambda: compactor.compact(turn.key))
        return end

    def _release(self, lane: _Lane) -> None:
        lane.busy = False
        lane.turn = None
        self.kick(lane.key)

    def _lane(self, key: SessionKey) -> _Lane:
        return self._lanes.setdefault(key, _Lane(key))

    # -- after a restart ----------------------------------------------------------------

    async def _at_last(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Nothing is answered before the store lets us `begin`."""
        while True:
            try:
                return await begin()
            except StoreError as error:
                log.error("not_begun", error=str(error), again_in_s=_RETRY_CEILING_S)
                await anyio.sleep(_RETRY_CEILING_S)

    async def _resume_all(self) -> None:
        """Take up the turns that a crash or a planned shutdown left running, by origin."""
        found = [one for one in await self._store.running_turns() if one.id not in self._live]
        resumed = [one for one in found if one.origin in ("bus", "cron", "job")]
        for running in found:
            if running not in resumed:
                await self._close_interrupted(running)
        assert self._workers is not None
        for running in resumed:
            lane = self._lane(running.key)
            if lane.busy:
                continue  # With a turn from before we served, which closes what was left over.
            lane.busy = True
            if running.parked and running.attempt == 1:
                self._workers.start_soon(self._resume, lane, running)
            else:
                self._line.append((lane, running))
        if self._line:
            self._workers.start_soon(self._resume_line)

    async def _close_interrupted(self, running: RunningTurn) -> None:
        with suppress(TurnEnded):
            closed = await self._store.close(
                running.id, text=INTERRUPTED, outcome="interrupted", attempts=()
            )
            self._services.announce(closed.outbound)

    async def _resume_line(self) -> None:
        """One at a time, so that a turn that brings the daemon down condemns no bystander."""
        while self._line and not self._draining:
            await self._resume(*self._line.popleft())

    async def _resume(self, lane: _Lane, running: RunningTurn) -> None:
        new = NewTurn(id=running.id, key=running.key, origin=running.origin)
        try:
            while not self._draining:
                try:
                    await self._run_turn(lane, self._new_turn(lane, new), running)
                    break
                except StoreError as error:
                    log.error("turn_not_resumed", session=str(lane.key), error=str(error))
                    await anyio.sleep(_RETRY_CEILING_S)
        except Exception:
            # The next turn of the session closes this one as it begins.
            log.exception("turn_not_resumed", session=str(lane.key))
        finally:
            self._release(lane)

    def _leave_line(self, turn_id: str) -> None:
        """A turn that waited to go on after a restart was closed: its key is free."""
        for place, (lane, running) in enumerate(self._line):
            if running.id == turn_id:
                del self._line[place]
                self._feed.watcher(running.key, running.id).phase(Phase.DONE, "stopped")
                self._release(lane)
                return

    def line(self) -> Sequence[RunningTurn]:
        """The turns that wait to go on after a restart, in the order they will."""
        return tuple(running for _, running in self._line)

    # -- commands -----------------------------------------------------------------------

    async def stop(self, key: SessionKey) -> Commanded:
        """Stop the live turn of `key`, durably; without one, what waits for a slot."""
        return await self._carry_out(Command(name="stop"), None, clean_key(key))

    async def _command(self, command: Command, message: InboundMessage) -> Accepted:
        done = await self._carry_out(command, message, message.key)
        assert done.id is not None
        return Accepted(id=done.id, session_key=message.key, duplicate=done.duplicate)

    async def _carry_out(
        self, command: Command, message: InboundMessage | None, key: SessionKey
    ) -> Commanded:
        """T7, then its effect in memory. The transaction has closed the turn already, so the
        stop holds whatever the turn's task does; cancelling it only frees what it holds."""
        command = replace(command, told=self.status_line(key))
        if (prepare := self._services.prepare.get(command.name)) is not None:
            command = await prepare(command, key)
        try:
            done = await self._store.command(
                message,
                key=key,
                effect=command.effect,
                reply=lambda outcome: answer(command, outcome),
                closing=command.closing,
                choice=command.choice,
                note=self._services.session(key).note,
            )
        except StoreUnavailable:
            lane = self._lanes.get(key)
            if command.effect == "stop" and lane is not None and lane.turn is not None:
                lane.turn.stop(closed=False)
            raise
        if done.outcome is not None and done.outcome.stopped_turn_id:
            self.free(done.outcome.stopped_turn_id)
        elif done.outcome is not None and done.outcome.stopped_waiting:
            closed = {row_id for out in done.outbound for row_id in out.message_ids}
            self._bus.claimed(key, closed - {done.id})
        self._services.announce(done.outbound)
        if command.name == "compact" and not done.duplicate:
            await self._beside(lambda: self._services.compactor.compact(key, whole=True))
        return done

    def free(self, turn_id: str) -> None:
        """The store has closed this turn: what it holds is given back."""
        turn = self._live.get(turn_id)
        if turn is not None:
            turn.stop()
        else:
            self._leave_line(turn_id)

    async def abandon(self, turn: Turn) -> None:
        """Go on without a turn that will not end: it is closed in the store, so that its task can
        write nothing more, and its slot and key are free. Raises `StoreError`."""
        with suppress(TurnEnded):
            closed = await self._store.close(
                turn.id, text=OUT_OF_HAND, outcome="timeout", attempts=turn.unbooked()
            )
            self._services.announce(closed.outbound)
        self._live.pop(turn.id, None)
        turn.let_go()
        lane = self._lanes.get(turn.key)
        if lane is not None and lane.turn is turn:
            # What its task still does to the lane that it owns touches nobody.
            self._lanes[turn.key] = _Lane(turn.key, tickets=lane.tickets)
            lane.tickets = deque()
            self.kick(turn.key)
        self._check_quiet()

    def status_line(self, key: SessionKey) -> str:
        """What `/status` answers: this session's turn, then the daemon's queues."""
        lane = self._lanes.get(key)
        if lane is not None and lane.turn is not None:
            here = f"Working here: {lane.turn.describe()}."
        elif any(running.key == key for running in self.line()):
            here = "What was begun here waits to go on after the restart."
        else:
            here = "Nothing is running here."
        return (
            f"{here} {self._gate.held} of {self._gate.limit} turns at work, "
            f"{self._gate.waiting} waiting for a slot, {self._gate.parked} waiting for others."
        )

    # -- who watches --------------------------------------------------------------------

    def on_activity(self, watcher: Callable[[Activity], None] | None) -> None:
        """Install the one activity watcher in place of any before it; None clears it. It must not
        block or call back into the loop. What it raises is logged and does a turn no harm."""
        self._feed.on_activity(watcher)

    async def last_channel(self) -> Address | None:
        """Where the newest external message came from, over restarts; None before the first."""
        return await self._store.last_address()

    def live(self) -> Sequence[Turn]:
        """The turns that have begun or wait for a slot, oldest first."""
        return tuple(self._live.values())

    # -- background work and the end ----------------------------------------------------

    async def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` in the background, or now where nothing serves."""
        self._background += 1
        if self._workers is not None:
            self._workers.start_soon(self._do_beside, work)
        else:
            await self._do_beside(work)

    async def _do_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            # The boundary that supervises what is beside the turns: it takes no turn with it.
            log.exception("background_broke")
        finally:
            self._background -= 1
            if not self._background:
                self._background_idle.set()
                self._background_idle = anyio.Event()

    async def wait_background(self, timeout_s: float) -> bool:
        """Wait until background work (memory, compaction) has drained; False at the timeout."""
        with anyio.move_on_after(timeout_s):
            while self._background:
                await self._background_idle.wait()
        return not self._background

    def begin_drain(self) -> None:
        """Start no new turn and fold nothing more; direct turns that wait are refused. A turn
        that asked for it, by one of its own calls, is not waited for."""
        self._draining = True
        self._taken_up.set()
        asking = _current_turn.get()
        self._exempt = asking.id if asking else None
        for lane in list(self._lanes.values()):
            while lane.tickets:
                ticket = lane.tickets.popleft()
                ticket.refused = True
                ticket.called.set()
        for turn in self._live.values():
            turn.withdraw()
        self._check_quiet()

    async def drained(self) -> None:
        """Wait until no turn is live but the one that asked for the end."""
        self._check_quiet()
        await self._quiet.wait()

    def waiting_for(self) -> Sequence[str]:
        """The live turns that a drain waits for, in words."""
        return [f"{one.key}: {one.describe()}" for one in self.live() if one.id != self._exempt]

    def _check_quiet(self) -> None:
        if self._draining and not self.waiting_for():
            self._quiet.set()
