"""The real core over the real store, with a scripted model: what the tests of `core` drive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from teaagentd.abc import LLMAdapter, MemoryEngine, SystemClock, Tool
from teaagentd.agent.compaction import Summariser
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.execution import RunPlace
from teaagentd.agent.runner import AgentRunner, RunLimits
from teaagentd.agent.toolbox import CallLimits, Toolbox, ToolRegistry
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.compaction import Compactor
from teaagentd.core.context import ContextBuilder
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.core.gate import Gate
from teaagentd.core.loop import Loop
from teaagentd.core.turn import Turn, TurnServices
from teaagentd.providers.options import ModelOptions
from teaagentd.store import Store
from teaagentd.store.values import Accepted
from teaagentd.types import Activity, InboundMessage, OutboundMessage, Phase, SessionKey


@dataclass(kw_only=True)
class Rig:
    """One running core. `activities` holds every phase change, in order."""

    store: Store
    bus: MessageBus
    loop: Loop
    gate: Gate
    feed: ActivityFeed
    dispatcher: Dispatcher
    tasks: TaskGroup
    activities: list[Activity]

    async def say(
        self, content: str, chat: str = "c", *, channel: str = "api", **more: str
    ) -> Accepted:
        return await self.bus.publish(
            InboundMessage(channel=channel, chat_id=chat, content=content, **more)
        )

    async def replies(self, chat: str = "c", *, channel: str = "api") -> list[OutboundMessage]:
        key = SessionKey(channel=channel, chat_id=chat)
        return list(await self.store.replies(key, after=0))

    async def reply_to(self, accepted: Accepted) -> OutboundMessage:
        """The text that answers one accepted message."""
        after = 0
        with anyio.fail_after(20):
            while True:
                for reply in await self.dispatcher.replies(
                    accepted.session_key, after=after, wait_s=20
                ):
                    after = reply.id
                    if accepted.id in reply.message_ids:
                        return reply

    async def quiet(self) -> None:
        """Until no turn is live and nothing is pending."""
        with anyio.fail_after(20):
            while self.loop.live() or any(row.ids for row in await self.store.pending_keys()):
                await anyio.sleep(0.01)

    def phases(self, turn_id: str | None = None) -> list[Phase]:
        return [
            activity.phase
            for activity in self.activities
            if turn_id is None or activity.turn_id == turn_id
        ]


@asynccontextmanager
async def running(
    folder: Path,
    model: LLMAdapter,
    *,
    tools: Sequence[Tool] = (),
    cap: int = 4,
    max_parked: int = 100,
    limits: RunLimits | None = None,
    max_pending: int = 1000,
    turn_timeout_s: float = 60.0,
    tool_timeout_s: float = 60.0,
    memory: MemoryEngine | None = None,
    serve: bool = True,
) -> AsyncIterator[Rig]:
    """A core on `folder`. Leaving it is a planned shutdown."""
    (folder / "workspace").mkdir(exist_ok=True)
    clock = SystemClock()
    store = await Store.open(folder / "state.db", clock=clock, max_pending=max_pending)
    try:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as strays:
            feed = ActivityFeed(clock=clock)
            bus = MessageBus(store)
            dispatcher = Dispatcher(store=store, channels={}, inbox=bus, clock=clock, feed=feed)
            registry = ToolRegistry(tools)
            toolbox = Toolbox(
                registry=registry,
                clock=clock,
                strays=strays,
                limits=CallLimits(timeout_s=tool_timeout_s, grace_s=0.3, stop_grace_s=0.3),
            )
            engine = ModelDecisionEngine(
                adapter=model, registry=registry, retry=RetryPolicy(wait_s=0.01, jitter_s=0.01)
            )

            def make_runner(turn: Turn) -> AgentRunner:
                return AgentRunner(
                    engine=engine,
                    toolbox=toolbox,
                    journal=turn,
                    place=RunPlace(session_key=turn.key, turn_id=turn.id, waiting=turn.waiting),
                    watcher=turn.watcher,
                    limits=limits or RunLimits(),
                    window=window,
                )

            def window(choice: str | None = None) -> int | None:
                return model.context_window

            words = ModelDecisionEngine(
                adapter=model,
                registry=ToolRegistry([]),
                options=ModelOptions(decisions="native"),
                retry=RetryPolicy(wait_s=0.01, jitter_s=0.01),
            )
            compactor = Compactor(
                store=store,
                summariser=Summariser(engine=words, window=window),
                window=window,
            )
            services = TurnServices(
                store=store,
                bus=bus,
                feed=feed,
                context=ContextBuilder(workspace=folder / "workspace", clock=clock),
                clock=clock,
                make_runner=make_runner,
                announce=dispatcher.announce,
                memory=memory,
                timeout_s=turn_timeout_s,
                context_window=window,
                compactor=compactor,
            )
            gate = Gate(cap, max_parked=max_parked)
            loop = Loop(bus=bus, store=store, gate=gate, feed=feed, services=services)
            activities: list[Activity] = []
            loop.on_activity(activities.append)
            rig = Rig(
                store=store,
                bus=bus,
                loop=loop,
                gate=gate,
                feed=feed,
                dispatcher=dispatcher,
                tasks=tasks,
                activities=activities,
            )
            if serve:
                tasks.start_soon(loop.run)
            try:
                yield rig
            finally:
                tasks.cancel_scope.cancel()
                strays.cancel_scope.cancel()
    finally:
        await store.aclose()
