"""The composition root: what is built, in what order it starts and ends, and how it takes up a
changed configuration.

Start: lock the home, open the store, build provider, tools and channels, then serve. End, on the
first signal: no new turn begins, live ones may finish within `shutdown.drain_timeout_s`, their
replies are handed to the channels, and what is left is parked to be resumed by the next start.
The second signal ends the waiting at once; a third ends the process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup, TaskStatus

from teaagentd import generation
from teaagentd.abc import SystemClock
from teaagentd.agent.budget import Spending
from teaagentd.agent.compaction import Summariser
from teaagentd.attachments import Attachments
from teaagentd.commands import Command
from teaagentd.config import Settings
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.compaction import Compactor
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.core.gate import Gate
from teaagentd.core.loop import Loop
from teaagentd.core.turn import TurnServices
from teaagentd.errors import ConfigError, StoreError
from teaagentd.generation import Generation
from teaagentd.home import Home
from teaagentd.plugins import import_all
from teaagentd.providers.chain import Chain
from teaagentd.reload import Reloader
from teaagentd.service import ServiceManager
from teaagentd.services.alerts import Alerts
from teaagentd.services.budget_alerts import BudgetAlerts
from teaagentd.services.intake import Intake
from teaagentd.services.models import Models
from teaagentd.services.monitor import Monitor
from teaagentd.services.retention import Keep, Retention
from teaagentd.services.watchdog import Watchdog
from teaagentd.store import HomeLock, Store, failpoints
from teaagentd.store.opening import RESCUED
from teaagentd.store.store import PULL_CHANNELS
from teaagentd.store.upgrade import failed_before
from teaagentd.types import Phase, SessionKey

log = structlog.get_logger()

EXIT_CLEAN = 0
EXIT_FORCED = 3
"""The end was forced: what was unfinished goes on at the next start."""
EXIT_LOST = 65
"""The database file was taken away while the daemon ran; another start would not find it."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_DAEMON_SIGNALS = (*_SIGNALS, signal.SIGHUP)
_LAST_SENDS_S = 10.0
_STRAYS_S = 2.0
_BACKGROUND_S = 600.0
_REVOKE_AGAIN_S = 5.0
_LAST_S = 15.0
"""How long what was cancelled may take to end at the very end."""
REVOKED = "Stopped: who asked for this may no longer speak here."

OnSettings = Callable[[Settings], None]


def _spare_the_collector() -> None:
    """What the start has built stays, so the garbage collector need not walk it. The daemon makes
    few cycles: the standard pace costs each turn a twentieth of its CPU, and finds nothing."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class Daemon:
    """Everything that lives as long as the process: made by `open`, run by `serve`."""

    def __init__(
        self,
        made: Generation,
        *,
        store: Store,
        strays: TaskGroup,
        files: Attachments,
        progress: _Progress | None = None,
        on_settings: OnSettings | None = None,
    ) -> None:
        """`strays` holds what will not end when it should; the owner leaves it behind.
        `on_settings` is told of each change of the settings."""
        self.clock = SystemClock()
        self.store = store
        self.generation = made
        self.generations = 1
        """How many configurations were in force so far."""
        self.loaded_at = self.started_at = self.clock.now_ms()
        """Since when this configuration is in force, and since when the daemon lives."""
        self.feed = ActivityFeed(clock=self.clock)
        self.bus = MessageBus(store)
        self.intake = Intake(bus=self.bus, files=files, store=store)
        self.dispatcher = Dispatcher(
            store=store,
            channels=made.channels,
            inbox=self.intake,
            clock=self.clock,
            feed=self.feed,
            receivers=strays,
        )
        agent = made.settings.agent
        self.gate = Gate(agent.max_concurrent_turns, max_parked=agent.max_parked_turns)
        self._summariser = Summariser(engine=made.words, window=self._window)
        self.spending = Spending(store=store, clock=self.clock, caps=made.caps)
        self._summariser.gate = self.spending.gate
        self.models = Models(chain=lambda: self.chain, store=store)
        self._compactor = Compactor(store=store, summariser=self._summariser, window=self._window)
        self.loop = Loop(
            bus=self.bus, store=store, gate=self.gate, feed=self.feed, services=self._services()
        )
        self.bus.senders = made.senders
        self.draining = False
        self.status = EXIT_CLEAN
        self._look_after_itself()
        self._summariser.on_outcome = self._summary_told
        self._strays = strays
        self._progress = progress or _Progress(None)
        self._progress.show_on(self.loop)
        self._on_settings = on_settings
        self._former: list[Generation] = []
        self._tasks: TaskGroup | None = None
        self._last: threading.Timer | None = None
        self._stop = anyio.Event()
        self._force = anyio.Event()

    def _look_after_itself(self) -> None:
        """Make what keeps the daemon well while nobody looks."""
        home = Home(root=self.settings.home)
        self.reloader = Reloader(
            home,
            current=lambda: self.settings,
            apply=self.apply,
            on_problem=self._configuration_told,
        )
        self.alerts = Alerts(
            store=self.store,
            clock=self.clock,
            announce=self.dispatcher.announce,
            channels=self._reaching,
        )
        self.monitor = Monitor(
            alerts=self.alerts,
            store=self.store,
            dispatcher=self.dispatcher,
            gate=self.gate,
            clock=self.clock,
            state_file=home.state_file,
            on_lost=self._database_lost,
            look_besides=BudgetAlerts(alerts=self.alerts, spending=self.spending).look,
        )
        self.retention = Retention(
            store=self.store,
            clock=self.clock,
            keep=lambda: Keep(**self.settings.retention.model_dump()),
            logs=home.logs,
            sweep_files=self.intake.sweep,
        )

    @property
    def settings(self) -> Settings:
        return self.generation.settings

    @property
    def chain(self) -> Chain:
        return self.generation.chain

    @property
    def configuration_problem(self) -> str | None:
        return self.reloader.problem

    def _services(self) -> TurnServices:
        made = self.generation
        return TurnServices(
            store=self.store,
            bus=self.bus,
            feed=self.feed,
            context=made.context,
            clock=self.clock,
            make_runner=lambda turn: made.make_runner(turn, self.spending.gate(turn.key, turn.id)),
            announce=self.dispatcher.announce,
            timeout_s=made.settings.agent.turn_timeout_s,
            context_window=made.window,
            compactor=self._compactor,
            prepare={"usage": self._usage, "model": self.models.prepare},
        )

    def _window(self) -> int | None:
        return self.generation.window()

    async def _usage(self, command: Command, key: SessionKey) -> Command:
        return replace(command, told=await self.spending.describe(key))

    # -- another configuration ----------------------------------------------------------

    async def apply(self, settings: Settings) -> None:
        """Have what begins from now on work with `settings`; turns that are at work go on with
        theirs, but for those of senders who may no longer speak. Raises `ConfigError`: then
        nothing has changed."""
        await anyio.to_thread.run_sync(import_all, settings)
        before = self.generation
        made, faults = generation.make(
            settings,
            before,
            clock=self.clock,
            strays=self._strays,
            files=self.intake.files,
            on_progress=self._progress,
        )
        try:
            if faults:
                raise faults[0]
            self.dispatcher.use(made.channels)
        except ConfigError:
            if made.chain is not before.chain:
                await made.chain.aclose()
            raise
        # Nothing is awaited and nothing fails from here to the end of the block.
        self.generation = made
        self.generations += 1
        self.loaded_at = self.clock.now_ms()
        self._summariser.engine = made.words
        self.spending.caps = made.caps
        self.loop.use(self._services())
        self.gate.max_parked = settings.agent.max_parked_turns
        self.gate.resize(settings.agent.max_concurrent_turns)
        self.store.max_pending = settings.bus.max_pending
        self.bus.senders = made.senders
        if self._on_settings is not None:
            self._on_settings(settings)
        log.info("configuration_applied", generation=self.generations)
        if self._tasks is not None:
            self._tasks.start_soon(self._retire, before)
            self._tasks.start_soon(self._warm)
        await self._revoke()

    async def _revoke(self) -> None:
        """Take from those who may not speak what they had begun."""
        senders = self.bus.senders
        if not senders:
            return
        try:
            revoked = await self.store.revoke(senders, closing=REVOKED)
        except StoreError as error:
            # No new word of theirs is taken; what they said before goes with the next try.
            log.error("senders_not_revoked", error=str(error), again_in_s=_REVOKE_AGAIN_S)
            if self._tasks is not None:
                self._tasks.start_soon(self._revoke_later)
            return
        for key, ids in revoked.set_aside.items():
            self.bus.forget(key, ids)
            log.warning("messages_set_aside", session=str(key), count=len(ids), reason="sender")
        for turn_id in revoked.turn_ids:
            self.loop.free(turn_id)
        self.dispatcher.announce(revoked.outbound)

    async def _revoke_later(self) -> None:
        await anyio.sleep(_REVOKE_AGAIN_S)
        await self._revoke()

    async def _retire(self, before: Generation) -> None:
        """Let go of an earlier generation once no turn works with it: its calls are known until
        then, and a model that only it used is closed."""
        self._former.append(before)
        done_with = before.chain is not self.chain
        await self.loop.outlasted()
        if done_with:
            await self.loop.wait_background(_BACKGROUND_S)
            await before.chain.aclose()
        self._former = [one for one in self._former if one is not before or self._left_behind]

    async def _configuration_told(self, problem: str | None) -> None:
        if problem is None:
            self.alerts.cleared("configuration", "")
        else:
            text = f"The changed configuration cannot be used, and is not in force: {problem}"
            self.alerts.raised("configuration", "", text)

    # -- what the owner should know -----------------------------------------------------

    def _reaching(self) -> Collection[str]:
        """The channels by which the owner can be reached."""
        states = self.dispatcher.channel_status()
        return PULL_CHANNELS.union(one.name for one in states if one.state == "running")

    def _summary_told(self, key: SessionKey, problem: str | None) -> None:
        if problem is None:
            self.alerts.cleared("summary", str(key))
        else:
            text = (
                f"The conversation {key} has grown long, and could not be summarised ({problem}). "
                "Nothing is lost; if that goes on, the oldest of it is left out of what I read."
            )
            self.alerts.raised("summary", str(key), text)

    def _database_lost(self, what: str) -> None:
        """Without its file nothing more may be accepted: what there is is saved, and the daemon
        ends, as no restart would find it."""
        if self.status == EXIT_LOST:
            return
        self.status = EXIT_LOST
        log.critical("database_lost", what=what)
        self.alerts.raised(
            "database",
            "file",
            f"{what}. I end now, and save all I know as {RESCUED} beside it: move that to its "
            "place, then start me.",
        )
        self.request_stop()

    async def _rescue(self) -> None:
        """Write what the lost file held to another one, with what the owner is told of it."""
        with suppress(StoreError):  # which the rescue meets, too, and tells
            await self.alerts.settle()
        try:
            path = await self.store.admin.rescue()
        except StoreError as error:
            log.critical("database_not_rescued", error=str(error))
        else:
            log.critical("database_rescued", path=str(path))

    # -- making it ----------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        *,
        on_progress: Callable[[str], None] | None = None,
        on_settings: OnSettings | None = None,
    ) -> AsyncIterator[Daemon]:
        """A daemon that holds its home and has opened its store. `on_progress` gets lines for
        whoever waits, such as a model that loads; `on_settings` each change of the settings.

        Raises `HomeLocked`, `StoreDamaged`, `StoreTooNew`, `StoreUnavailable` and `ConfigError`;
        then nothing was changed.
        """
        home = Home(root=settings.home)
        home.create()
        clock = SystemClock()
        async with AsyncExitStack() as stack:
            stack.enter_context(HomeLock(home.root))
            store = await Store.open(
                home.state_file,
                clock=clock,
                max_pending=settings.bus.max_pending,
                on_commit=failpoints.from_environment(),
            )
            stack.push_async_callback(store.aclose)
            progress = _Progress(on_progress)
            strays = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(strays.cancel_scope.cancel)
            files = Attachments(home.files)
            made, faults = generation.make(
                settings, None, clock=clock, strays=strays, files=files, on_progress=progress
            )
            for fault in faults:
                log.error("channel_disabled", reason=str(fault))
            daemon = cls(
                made,
                store=store,
                strays=strays,
                files=files,
                progress=progress,
                on_settings=on_settings,
            )
            try:
                if (failure := failed_before(home.state_file)) is not None:
                    daemon.alerts.raised("upgrade", "", failure)
                daemon.feed.newest_reply = await store.newest_reply()
                if unresolved := await store.books.resolve():
                    log.warning("requests_counted_as_spent", count=unresolved)
                await daemon._revoke()
                yield daemon
            finally:
                with anyio.CancelScope(shield=True):
                    await daemon._close_chains()
                    await daemon._leave_strays(strays)
                if daemon._last is not None:
                    daemon._last.cancel()

    # -- its life -----------------------------------------------------------------------

    def request_stop(self) -> None:
        """Begin the end; a second call forces it. Safe from a turn's own tool: a turn that
        asks is not waited for."""
        if self._stop.is_set():
            self._force.set()
            return
        self.draining = True
        self.loop.begin_drain()
        self._stop.set()

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> int:
        """Run until asked to stop. Returns the exit status: `EXIT_CLEAN` or `EXIT_FORCED`."""
        # Imported here, as commands that never serve should not pay for it.
        from teaagentd.web.server import serve_socket

        async with anyio.create_task_group() as tasks, ServiceManager() as manager:
            self._tasks = tasks
            # What was left is taken up before anyone can be in its way.
            tasks.start_soon(self.loop.run)
            tasks.start_soon(self.dispatcher.run)
            await tasks.start(serve_socket, self, Home(root=self.settings.home).socket)
            _spare_the_collector()
            log.info(
                "ready", provider=self.chain.links[0].label, model=self.chain.links[0].adapter.model
            )
            manager.ready()
            tasks.start_soon(manager.keep_alive, self.store.ping)
            tasks.start_soon(self._warm)
            tasks.start_soon(self.reloader.run)
            tasks.start_soon(self.alerts.run)
            tasks.start_soon(self.monitor.run)
            tasks.start_soon(self.retention.run)
            tasks.start_soon(Watchdog(loop=self.loop, store=self.store, alerts=self.alerts).run)
            task_status.started()
            await self._stop.wait()
            manager.stopping()
            status = await self._drain()
            if self.status == EXIT_LOST:
                await self._rescue()
            else:
                self.status = status
            self._end_at_last()
            tasks.cancel_scope.cancel()
        return self.status

    async def _close_chains(self) -> None:
        for made in (*self._former, self.generation):
            await made.chain.aclose()

    @property
    def _left_behind(self) -> tuple[str, ...]:
        """Tools and channels that have not ended though they should have."""
        tools = [
            name for made in (*self._former, self.generation) for name in made.toolbox.left_behind
        ]
        return (*tools, *self.dispatcher.left_behind)

    def _end_at_last(self) -> None:
        """Everything is committed: a task that will not end does not keep the process."""
        end = threading.Timer(_LAST_S, os._exit, (self.status,))
        end.daemon = True
        end.start()
        self._last = end

    async def _leave_strays(self, strays: TaskGroup) -> None:
        """What will not end would keep the process for ever: it ends without that, with
        everything closed that must be."""
        strays.cancel_scope.cancel()
        with anyio.move_on_after(_STRAYS_S):
            while self._left_behind:  # noqa: ASYNC110  # they tell nobody of their end
                await anyio.sleep(_STRAYS_S / 10)
        if self._left_behind:
            log.error("left_behind", what=self._left_behind)
            await self.store.aclose()
            os._exit(self.status)

    async def _warm(self) -> None:
        """Load what the next answer needs while nobody waits for it yet."""
        await self.chain.warm()

    async def _drain(self) -> int:
        """Let what was begun end: turns first, then the sends of their replies."""
        for line in self.loop.waiting_for():
            log.info("draining", waits_for=line)
        limit_s = self.settings.shutdown.drain_timeout_s
        status = EXIT_CLEAN
        async with anyio.create_task_group() as tasks:

            async def end_early() -> None:
                nonlocal status
                await self._force.wait()
                status = EXIT_FORCED
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_early)
            with anyio.move_on_after(limit_s):
                await self.loop.drained()
            for line in self.loop.waiting_for():
                log.warning("left_to_be_resumed", turn=line)
            for line in self.dispatcher.waiting_for():
                log.info("draining", waits_for=line)
            for line in await self.dispatcher.drain(min(limit_s, _LAST_SENDS_S)):
                log.warning("left_to_be_sent", what=line)
            tasks.cancel_scope.cancel()
        log.info("stopped", clean=status == EXIT_CLEAN)
        return status

    async def watch_signals(self) -> None:
        """SIGTERM and SIGINT: the first drains, the second forces, a third ends at once."""
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            await self.heed(signals, forcing=True)

    async def heed(self, signals: AsyncIterator[signal.Signals], *, forcing: bool = False) -> None:
        """The same for a receiver that was opened before the daemon was. Without `forcing` the
        first signal forces nothing, though the end was asked for over the socket before."""
        count = 0
        async for received in signals:
            if received == signal.SIGHUP and not sys.stderr.isatty():
                log.info("signal", signal=received.name)
                self.reloader.request()
                self.monitor.request()
                self.retention.request()
                continue
            count += 1
            log.info("signal", signal=received.name, count=count)
            if count > 2:
                os._exit(EXIT_FORCED)
            if count > 1 or forcing or not self.draining:
                self.request_stop()


class _Progress:
    """Lines of the provider's own progress, shown to whoever waits for an answer."""

    def __init__(self, on_progress: Callable[[str], None] | None) -> None:
        self._on_progress = on_progress
        self._loop: Loop | None = None

    def show_on(self, loop: Loop) -> None:
        self._loop = loop

    def __call__(self, line: str) -> None:
        log.info("provider_progress", line=line)
        if self._on_progress is not None:
            self._on_progress(line)
        if self._loop is not None:
            for turn in self._loop.live():
                if turn.begun_at is not None:
                    turn.watcher.phase(Phase.THINKING, line)


async def run(settings: Settings, on_settings: OnSettings | None = None) -> int:
    """`teaagentd run`: open, serve, heed signals, also those that came while it opened. SIGHUP
    has the configuration looked at; from a terminal that was closed it ends the daemon. Returns
    the exit status."""
    with anyio.open_signal_receiver(*_DAEMON_SIGNALS) as signals:
        async with (
            Daemon.open(settings, on_settings=on_settings) as daemon,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(daemon.heed, signals)
            status = await daemon.serve()
            tasks.cancel_scope.cancel()
    return status


def run_daemon(settings: Settings, on_settings: OnSettings | None = None) -> int:
    """The same from a process without an event loop. Raises as `Daemon.open` does."""
    return anyio.run(run, settings, on_settings)
