"""The composition root: what is built from the settings, in what order it starts and ends.

Start: lock the home, open the store, build provider, tools and channels, then serve. End, on the
first signal: no new turn begins, live ones may finish within `shutdown.drain_timeout_s`, their
replies are handed to the channels, and what is left is parked to be resumed by the next start.
The second signal ends the waiting at once; a third ends the process.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from zoneinfo import ZoneInfo

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from teaagentd.abc import Channel, LLMAdapter, SystemClock
from teaagentd.agent.compaction import Summariser
from teaagentd.agent.dialects import JsonDialect
from teaagentd.agent.engine import ModelDecisionEngine
from teaagentd.agent.execution import RunPlace
from teaagentd.agent.runner import AgentRunner, RunLimits
from teaagentd.agent.toolbox import CallLimits, Toolbox, ToolRegistry
from teaagentd.config import Settings
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.compaction import Compactor
from teaagentd.core.context import ContextBuilder
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.core.gate import Gate
from teaagentd.core.loop import Loop
from teaagentd.core.turn import Turn, TurnServices
from teaagentd.home import Home
from teaagentd.plugins import load_channels, load_provider, load_tools, provider_options
from teaagentd.service import ServiceManager
from teaagentd.store import HomeLock, Store, failpoints
from teaagentd.types import Phase

log = structlog.get_logger()

EXIT_CLEAN = 0
EXIT_FORCED = 3
"""The end was forced: what was unfinished goes on at the next start."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_SENDS_S = 10.0
_STRAYS_S = 2.0
_BRIEF = JsonDialect(brief=True, answer_limit=400)
"""For very small models. Measured with the embedded one: told more, it calls tools at random;
unbounded, it does not stop talking."""


def _spare_the_collector() -> None:
    """What the start has built stays, so the garbage collector need not walk it. The daemon makes
    few cycles: the standard pace costs each turn a twentieth of its CPU, and finds nothing."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class Daemon:
    """Everything that lives as long as the process: made by `open`, run by `serve`."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        adapter: LLMAdapter,
        registry: ToolRegistry,
        channels: Sequence[Channel],
        strays: TaskGroup,
    ) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.store = store
        self.adapter = adapter
        self.feed = ActivityFeed(clock=self.clock)
        self.bus = MessageBus(store)
        self.dispatcher = Dispatcher(
            store=store,
            channels={channel.name: channel for channel in channels},
            inbox=self.bus,
            clock=self.clock,
            feed=self.feed,
        )
        self._toolbox = Toolbox(
            registry=registry,
            strays=strays,
            limits=CallLimits(timeout_s=settings.agent.tool_timeout_s),
            clock=self.clock,
        )
        self._engine = ModelDecisionEngine(
            adapter=adapter,
            registry=registry,
            dialect=settings.provider.decisions,
            json_dialect=_BRIEF if adapter.small else None,
            max_output_tokens=settings.provider.max_output_tokens,
            clock=self.clock,
        )
        self._limits = RunLimits(
            max_iterations=settings.agent.max_iterations,
            max_tool_calls=settings.agent.max_tool_calls,
        )
        self.gate = Gate(
            settings.agent.max_concurrent_turns, max_parked=settings.agent.max_parked_turns
        )
        self.loop = Loop(
            bus=self.bus, store=store, gate=self.gate, feed=self.feed, services=self._services()
        )
        self.started_at = self.clock.now_ms()
        self.draining = False
        self.status = EXIT_CLEAN
        self._stop = anyio.Event()
        self._force = anyio.Event()

    def _services(self) -> TurnServices:
        zone = self.settings.agent.timezone
        context = ContextBuilder(
            workspace=Home(root=self.settings.home).workspace,
            clock=self.clock,
            name=self.settings.agent.name,
            zone=ZoneInfo(zone) if zone else None,
        )
        # A summary is asked for without tools, in plain words whatever the dialect.
        words = ModelDecisionEngine(
            adapter=self.adapter, registry=ToolRegistry([]), dialect="native", clock=self.clock
        )
        compactor = Compactor(
            store=self.store,
            summariser=Summariser(engine=words, window=self._window),
            window=self._window,
        )
        return TurnServices(
            store=self.store,
            bus=self.bus,
            feed=self.feed,
            context=context,
            clock=self.clock,
            make_runner=self._runner,
            announce=self.dispatcher.announce,
            timeout_s=self.settings.agent.turn_timeout_s,
            context_window=self._window,
            compactor=compactor,
        )

    def _window(self) -> int | None:
        return self.adapter.context_window

    def _runner(self, turn: Turn) -> AgentRunner:
        return AgentRunner(
            engine=self._engine,
            toolbox=self._toolbox,
            journal=turn,
            place=RunPlace(session_key=turn.key, turn_id=turn.id, waiting=turn.waiting),
            watcher=turn.watcher,
            limits=self._limits,
            window=self._window,
        )

    # -- making it ----------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, *, on_progress: Callable[[str], None] | None = None
    ) -> AsyncIterator[Daemon]:
        """A daemon that holds its home and has opened its store. `on_progress` gets lines for
        whoever waits, such as a model that loads.

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
            options = provider_options(settings.provider, clock=clock, on_progress=progress)
            adapter = load_provider(options.type, options)
            stack.push_async_callback(adapter.aclose)
            registry = ToolRegistry(load_tools(settings.tools.enabled))
            channels, faults = load_channels(settings.channels)
            for fault in faults:
                log.error("channel_disabled", reason=str(fault))
            strays = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(strays.cancel_scope.cancel)
            daemon = cls(
                settings=settings,
                store=store,
                adapter=adapter,
                registry=registry,
                channels=channels,
                strays=strays,
            )
            progress.show_on(daemon.loop)
            try:
                yield daemon
            finally:
                with anyio.CancelScope(shield=True):
                    await daemon._leave_strays(strays)

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
            await tasks.start(serve_socket, self, Home(root=self.settings.home).socket)
            tasks.start_soon(self.dispatcher.run)
            tasks.start_soon(self.loop.run)
            _spare_the_collector()
            log.info("ready", provider=self.adapter.name, model=self.adapter.model)
            manager.ready()
            tasks.start_soon(manager.keep_alive, self.store.ping)
            tasks.start_soon(self._warm)
            task_status.started()
            await self._stop.wait()
            manager.stopping()
            self.status = await self._drain()
            tasks.cancel_scope.cancel()
        return self.status

    async def _leave_strays(self, strays: TaskGroup) -> None:
        """Tools that will not end would keep the process for ever: it ends without them, with
        everything closed that must be."""
        strays.cancel_scope.cancel()
        with anyio.move_on_after(_STRAYS_S):
            while self._toolbox.left_behind:  # noqa: ASYNC110  # the tools tell nobody of their end
                await anyio.sleep(_STRAYS_S / 10)
        if self._toolbox.left_behind:
            log.error("tools_left_behind", tools=self._toolbox.left_behind)
            await self.adapter.aclose()
            await self.store.aclose()
            os._exit(self.status)

    async def _warm(self) -> None:
        """Load what the first answer needs while nobody waits for it yet."""
        await self.adapter.warm()

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


async def run(settings: Settings) -> int:
    """`teaagentd run`: open, serve, heed signals, also those that came while it opened. Returns
    the exit status."""
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async with Daemon.open(settings) as daemon, anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.heed, signals)
            status = await daemon.serve()
            tasks.cancel_scope.cancel()
    return status


def run_daemon(settings: Settings) -> int:
    """The same from a process without an event loop. Raises as `Daemon.open` does."""
    return anyio.run(run, settings)
