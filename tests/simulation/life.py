"""One life: a home whose daemon is run, killed and started again until its schedule is over and all
is quiet."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import anyio
from anyio._backends._asyncio import _task_states
from anyio.abc import TaskGroup

import teaagentd.daemon as daemon_module
from teaagentd import generation
from teaagentd.abc import Channel, Clock, Tool
from teaagentd.attachments import Attachments
from teaagentd.config import Settings
from teaagentd.daemon import Daemon
from teaagentd.errors import BusFull, SenderRefused, StoreError, TeaAgentError
from teaagentd.providers.chain import Chain, Link
from teaagentd.store import Store
from teaagentd.store.erasure import Target
from teaagentd.store.store import PULL_CHANNELS
from teaagentd.types import Activity, Address, InboundMessage, Phase, SessionKey
from teaagentd.web.desk import Desk
from tests.simulation import checks, schedule
from tests.simulation.parts import A_CENT_AN_ANSWER, Model, Record, SimChannel, SimTool
from tests.simulation.schedule import Action, commit_to_die_at
from tests.simulation.virtual import InlineDatabase, Stuck, VirtualLoop

_START_S = 1_000.0
_WALL_MS = 1_700_000_000_000
_MOST_PROCESSES = 60
_REST_S = 3 * 86_400.0
"""Virtual time within which all must be quiet once the schedule is over."""
_SENDERS = ("someone", "someone", "another")
_TOOLS = ("quick", "slow", "raises", "never", "waits", "calls")


class Crash(BaseException):
    """The process is killed here."""


class SimClock:
    """Wall and monotonic time of a life; the wall clock is set forward and back."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def now_ms(self) -> int:
        return _WALL_MS + int((self._life.now() + self._life.jumped_s) * 1000)

    def monotonic(self) -> float:
        return self._life.now()


class Life:
    """Plays a schedule. `record` holds what was seen from outside; `books` what clients were told
    is accepted, and what the store said of it."""

    def __init__(self, seed: str, actions: Sequence[Action], folder: Path, template: Path) -> None:
        self.seed = seed
        self.record = Record(seed)
        self.books = checks.Books()
        self.jumped_s = 0.0
        self.commits = 0
        self._actions = list(actions)
        self._removing: checks.Gone | None = None
        self._unheard: dict[str, InboundMessage] = {}
        self._folder = folder
        self._path = folder / "state.db"
        shutil.copy(template, self._path)
        self._at = _START_S
        self._loop: VirtualLoop | None = None
        self._processes = 0
        self._armed: tuple[str, str] | None = None
        self._database: InlineDatabase | None = None
        self._dead = True
        self._transaction: list[str] = []
        self._watch: checks.Watch | None = None
        self._finished = False
        self._ended: dict[str, int] = {}
        dice = random.Random(f"{seed}/life")
        self._window = dice.choice((None, None, 600, 3000))
        self._max_pending = dice.choice((1000, 1000, 4))
        # What an answer costs is a cent: so many of them in a conversation, or in a day.
        self._budget: dict[str, int] = dice.choice(
            ({}, {}, {"day_cents": 20}, {"session_cents": 5, "day_cents": 60}, {"turn_cents": 2})
        )
        self.books.cap_cents = self._budget.get("day_cents")
        self._settings = self._configured(dice, 0)

    def now(self) -> float:
        return self._at if self._loop is None else self._loop.time()

    def play(self) -> Record:
        """The whole life. What was wrong is in the record's `faults`."""
        with _replaced(self):
            while not self._finished and not self.record.faults:
                self._processes += 1
                if self._processes > _MOST_PROCESSES:
                    self.record.fault("it does not come to an end")
                    break
                self._run_process()
        if not self.record.faults:
            for fault in checks.at_the_end(self._path, self.record, self.books):
                self.record.fault(fault)
        return self.record

    # -- a process ----------------------------------------------------------------------

    def _run_process(self) -> None:
        loop = VirtualLoop(self._at)
        loop.set_exception_handler(self._callback_raised)
        loop.after_round = self._after_round
        self._loop, self._dead = loop, False
        self._transaction.clear()
        main = loop.create_task(self._serve())
        self.record.note(self.now(), f"process {self._processes} starts")
        try:
            loop.run_until_complete(main)
        except Stuck as error:
            self.record.fault(f"{error}: {[task.get_name() for task in asyncio.all_tasks(loop)]}")
        except RuntimeError as error:
            if "stopped before" not in str(error):
                self.record.fault(f"the daemon broke: {error!r}")
        except Exception as error:
            self.record.fault(f"the daemon broke: {_innermost(error)!r}")
        finally:
            self._at, self._loop = loop.time() + 1.0, None
            self._bury(loop)

    def _after_round(self) -> None:
        if self._watch is not None and not self._dead:
            for fault in self._watch.look():
                self.record.fault(fault)

    def _callback_raised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Crash) and not self._dead:
            self.record.fault(f"a callback raised {error!r}")

    def crash(self) -> None:
        """The process is gone: nothing of it is written any more."""
        if not self._dead:
            self._dead = True
            self.record.note(self.now(), "killed")
            self.record.seen.add("crash")
            assert self._database is not None
            assert self._loop is not None
            self._database.drop()
            self._loop.stop()

    def exit(self) -> Never:
        """The process ends though something in it will not."""
        self.record.seen.add("left behind")
        self.crash()
        raise Crash

    def _bury(self, loop: VirtualLoop) -> None:
        """Nothing of a killed process goes on: what its coroutines do as they are thrown away
        meets a closed store, and nobody hears of it."""
        self._dead, self._watch = True, None
        with _nobody_hears():
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
                _task_states.pop(task, None)  # which would keep the task, and all it knows
            loop.close()
            gc.collect()

    async def _serve(self) -> None:
        dice = random.Random(f"{self.seed}/hops/{self._processes}")
        database = InlineDatabase(
            self._path, self._committing, lambda: dice.choice((0.0, 0.0, 0.001, 0.05)) * 2
        )
        self._database = database
        store = Store(
            database,
            clock=SimClock(self),
            max_pending=self._max_pending,
            pull_channels=PULL_CHANNELS,
        )
        async with anyio.create_task_group() as strays:
            files = Attachments(self._path.with_name("files"))
            made, _ = generation.make(
                self._settings,
                None,
                clock=SimClock(self),
                strays=strays,
                files=files,
                on_progress=len,
            )
            daemon = Daemon(made, store=store, strays=strays, files=files)
            self._watch = checks.Watch(daemon)
            async with anyio.create_task_group() as tasks:
                daemon._tasks = tasks
                daemon.loop.on_activity(self._activity)
                over = anyio.Event()
                await store.books.resolve()
                await daemon._revoke()
                tasks.start_soon(daemon.loop.run)
                tasks.start_soon(daemon.dispatcher.run)
                async with anyio.create_task_group() as clients:
                    clients.start_soon(self._clients, daemon, clients, over)
                    await over.wait()
                    clients.cancel_scope.cancel()
                await daemon._drain()
                tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await daemon._leave_strays(strays)
        await store.aclose()

    # -- what is watched ----------------------------------------------------------------

    def _committing(self, name: str, side: str) -> None:
        if self._dead:
            return
        if side == "before":
            if not self._transaction:
                self.books.before_commit()
            self._transaction.append(name)
        elif self._transaction:
            self._committed()
        if self._armed == (name, side):
            self._armed = None
            self.record.note(self.now(), f"{side} {name}:")
            self.record.seen.add(f"crash {side} {name}")
            self.crash()
            raise Crash

    def _committed(self) -> None:
        """A transaction of one operation or several stands, whatever happens next."""
        names, self._transaction = self._transaction, []
        self.commits += len(names)
        self.record.seen.update(names)
        self.record.note(self.now(), f"  commit: {', '.join(names)}")
        assert self._database is not None
        connection = self._database.inline.connection
        for fault in self.books.after_commit(connection):
            self.record.fault(f"after {names}: {fault}")
        if "A8.sweep" in names:
            self.books.swept(connection)
        if self._removing is not None and {"A4.delete_session", "A5.erase"} & set(names):
            self.books.removed(self._removing)
            self.record.rewritten.append(len(self.record.requests))

    def _activity(self, activity: Activity) -> None:
        if not self._dead and activity.phase is Phase.DONE:
            times = self._ended[activity.turn_id] = self._ended.get(activity.turn_id, 0) + 1
            if times > self._processes:
                self.record.fault(f"turn {activity.turn_id} shows {times} ends")

    # -- what comes from outside --------------------------------------------------------

    async def _clients(self, daemon: Daemon, tasks: TaskGroup, over: anyio.Event) -> None:
        for message in list(self._unheard.values()):
            tasks.start_soon(self._post, daemon, message)
        while self._actions:
            action = self._actions[0]
            await anyio.sleep(max(_START_S + action.at - self.now(), 0.0))
            self._actions.pop(0)
            self.record.note(self.now(), str(action))
            self.record.seen.add(action.kind)
            if action.kind == "restart":
                self.record.seen.add("planned restart")
                over.set()
                return
            tasks.start_soon(self._act, daemon, action)
        await self._rest(daemon)
        over.set()

    async def _rest(self, daemon: Daemon) -> None:
        """Until nothing is left to do, or it is plain that it never will be."""
        end = self.now() + _REST_S
        while True:
            await anyio.sleep(7.0)
            left = await checks.restless(daemon)
            if not left and not self._unheard:
                break
            if self.now() > end:
                self.record.fault(f"it does not come to rest: {left or list(self._unheard)}")
                break
        self._finished = True

    async def _act(self, daemon: Daemon, action: Action) -> None:
        dice = action.dice(self.seed)
        with suppress(TeaAgentError):
            await getattr(self, f"_{action.kind}")(daemon, action, dice)

    async def _say(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await self._publish(daemon, action, f"#{action.number}# says something", dice)

    async def _burst(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for number in range(dice.randint(2, 6)):
            await self._publish(daemon, action, f"#{action.number}.{number}#", dice, number)

    async def _redeliver(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for _ in range(2):
            await self._publish(daemon, action, f"#{action.number}# twice", dice, named=True)

    async def _stop(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await self._publish(daemon, action, "/stop", dice)

    async def _new(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await self._publish(daemon, action, "/new", dice)

    async def _compact(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await self._publish(daemon, action, "/compact", dice)

    async def _stop_from_outside(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        channel, chat_id = action.chat
        await daemon.loop.stop(SessionKey(channel=channel, chat_id=chat_id))

    async def _direct(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await daemon.loop.process_direct(f"#{action.number}# direct", ":".join(action.chat))

    async def _direct_given_up(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        with anyio.move_on_after(dice.random() * 20):
            await daemon.loop.process_direct(f"#{action.number}# direct", ":".join(action.chat))

    async def _ephemeral(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await daemon.loop.process_ephemeral(f"#{action.number}# in passing")

    async def _reload(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        self._settings = self._configured(dice, action.number)
        await daemon.apply(self._settings)

    async def _revoke(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        before = self._settings
        channels = {name: {**table, "allow_from": []} for name, table in before.channels.items()}
        self._settings = before.model_copy(update={"channels": channels})
        await daemon.apply(self._settings)
        await anyio.sleep(dice.random() * 30)
        self._settings = before
        await daemon.apply(before)

    async def _disk(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        assert self._database is not None
        database = self._database
        database.inline.broken = True
        await anyio.sleep(dice.random() * 20)
        database.inline.broken = False

    async def _jump(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        self.jumped_s += dice.choice((-3600.0, 86_400.0, -30.0))

    async def _crash(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await anyio.sleep(dice.random() * dice.choice((0.01, 1.0, 10.0)))
        self.crash()

    async def _crash_at_commit(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        self._armed = commit_to_die_at(dice)
        if cause := schedule.CAUSES.get(self._armed[0]):
            await anyio.sleep(dice.random() * dice.choice((3, 90)))
            await getattr(self, f"_{cause}")(daemon, action, dice)

    async def _retry_dead(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for row in await daemon.store.dead_rows():
            daemon.bus.admit(await daemon.store.retry_dead(row.id))

    async def _drop(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for entry in await daemon.store.admin.inbox(limit=1):
            key, said = await daemon.store.admin.drop_row(entry.id, text="dropped")
            daemon.bus.forget(key, [entry.id])
            daemon.dispatcher.announce(said)

    async def _delete(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        channel, chat_id = action.chat
        key = SessionKey(channel=channel, chat_id=chat_id)
        await self._remove(daemon, Target(session=key), lambda said: said.key == key)

    async def _erase(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        if dice.random() < 0.5:
            sender = dice.choice(_SENDERS)
            target = Target(sender=sender)
            await self._remove(daemon, target, lambda said: said.message.sender_id == sender)
        else:
            channel, chat_id = action.chat
            target = Target(chat=Address(channel=channel, chat_id=chat_id))
            key = SessionKey(channel=channel, chat_id=chat_id)
            await self._remove(daemon, target, lambda said: said.key == key)

    async def _remove(self, daemon: Daemon, target: Target, gone: checks.Gone) -> None:
        while self._removing is not None:
            await anyio.sleep(1.0)
        self._removing = gone
        try:
            if target.session is not None:
                removed = await daemon.store.admin.delete_session(target.session)
            else:
                removed = await daemon.store.admin.erase(target)
        finally:
            self._removing = None
        Desk(daemon)._removed(removed, False)

    async def _sweep(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        await daemon.retention.look()

    async def _retry_letter(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for entry in await daemon.store.admin.outbox():
            if entry.state == "dead":
                self.record.again.add(entry.id)
                daemon.dispatcher.kick(await daemon.store.admin.retry_letter(entry.id))

    async def _drop_letter(self, daemon: Daemon, action: Action, dice: random.Random) -> None:
        for entry in await daemon.store.admin.outbox(limit=1):
            await daemon.store.admin.drop_letter(entry.id)

    async def _publish(
        self,
        daemon: Daemon,
        action: Action,
        text: str,
        dice: random.Random,
        part: int = 0,
        *,
        named: bool = False,
    ) -> None:
        """`named` by its client for sure, so that it is known when it comes again."""
        channel, chat_id = action.chat
        external = f"{action.number}.{part}"
        sender_id = random.Random(external).choice(_SENDERS)
        message = InboundMessage(
            channel=channel,
            chat_id=chat_id,
            content=text,
            sender_id=sender_id,
            external_id=external if named or dice.random() < 0.9 else None,
        )
        if message.external_id is not None:
            self._unheard[external] = message
        await self._post(daemon, message)

    async def _post(self, daemon: Daemon, message: InboundMessage) -> None:
        """As a client does: again, until it is told that it is accepted or refused for good."""
        while True:
            try:
                accepted = await daemon.bus.publish(message)
            except SenderRefused:
                self._unheard.pop(message.external_id or "", None)
                return
            except (BusFull, StoreError) as error:
                self.record.seen.add(type(error).__name__)
                if message.external_id is None:
                    return
                await anyio.sleep(9.0)
                continue
            for fault in self.books.acknowledged(accepted.id, accepted.session_key, message):
                self.record.fault(fault)
            self._unheard.pop(message.external_id or "", None)
            return

    def _configured(self, dice: random.Random, number: int) -> Settings:
        return Settings.model_validate(
            {
                "home": self._folder,
                "agent": {
                    "name": dice.choice(("Tea", "Ada")),
                    "max_concurrent_turns": dice.choice((1, 2, 8)),
                    "max_parked_turns": dice.choice((1, 64)),
                    "tool_timeout_s": 20,
                    "turn_timeout_s": dice.choice((60, 1800)),
                },
                "budget": self._budget,
                "provider": {"type": "local", "model": f"m{dice.randint(0, 1)}"},
                "bus": {"max_pending": self._max_pending},
                "channels": {
                    "push": {"colour": dice.randint(0, 1)},
                    "dedup": {"colour": dice.randint(0, 1)},
                },
                "retention": {
                    "transcripts": dice.choice((None, 1)),
                    "outbox": dice.choice((None, 1)),
                },
                "shutdown": {"drain_timeout_s": dice.choice((0, 5, 60))},
            }
        )

    # -- what the daemon is made of here ------------------------------------------------

    def make_chain(self, settings: object, *, clock: Clock, on_progress: object) -> Chain:
        model = Model(self.record, self.now, self._window, clock)
        link = Link(adapter=model, provider="sim", label="sim", prices=A_CENT_AN_ANSWER)
        return Chain([link], clock=clock)

    def make_channels(
        self, sections: dict[str, Any], known: dict[str, Channel] | None = None
    ) -> tuple[dict[str, Channel], tuple[()]]:
        return {
            name: (known or {}).get(name)
            or SimChannel(name, idempotent=name == "dedup", record=self.record, now=self.now)
            for name in sections
        }, ()

    def make_tools(self, daemon: Callable[[], Daemon]) -> tuple[Tool, ...]:
        def started(call: str) -> bool:
            assert self._database is not None
            sql = "SELECT 1 FROM calls WHERE call_id = ? AND started_at IS NOT NULL"
            return self._database.inline.connection.execute(sql, (call,)).fetchone() is not None

        async def direct(text: str, key: str) -> str:
            return await daemon().loop.process_direct(text, key)

        return tuple(SimTool(name, self.record, started, direct) for name in _TOOLS)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _nobody_hears() -> Iterator[None]:
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _replaced(life: Life) -> Iterator[None]:
    """The daemon's clocks, plugins and threads are those of the simulation."""
    current: list[Daemon] = []
    init = Daemon.__init__

    def remember(self: Daemon, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        current[:] = [self]

    async def inline(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return function(*args)

    changes: list[tuple[Any, str, Any]] = [
        (daemon_module, "SystemClock", lambda: SimClock(life)),
        (daemon_module, "os", SimpleNamespace(_exit=lambda status: life.exit())),
        (daemon_module, "import_all", lambda *args: None),
        (generation, "load_chain", life.make_chain),
        (generation, "load_channels", life.make_channels),
        (generation, "load_tools", lambda names: life.make_tools(lambda: current[0])),
        (anyio.to_thread, "run_sync", inline),
        (Daemon, "__init__", remember),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    random.seed(life.seed)
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)
