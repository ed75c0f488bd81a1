"""What hangs is seen, freed, and said to be freed only if it is."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from teaagentd.abc import LLMAdapter, SystemClock, ToolContext
from teaagentd.agent.runner import RunLimits
from teaagentd.services.alerts import Alerts
from teaagentd.services.watchdog import Watchdog
from teaagentd.testing import Scripted, ScriptedModel
from teaagentd.types import (
    JsonObject,
    LLMRequest,
    LLMResponse,
    Phase,
    SessionKey,
    ToolCall,
    ToolSpec,
)
from tests.core.rig import Rig, running

pytestmark = pytest.mark.anyio


class Deaf(ScriptedModel):
    """Hangs at the first request, whoever cancels it, until it is released."""

    def __init__(self) -> None:
        super().__init__(default="an answer")
        self.released = anyio.Event()

    async def complete(self, request: LLMRequest, on_chunk: object = None) -> LLMResponse:
        if "hang" in request.messages[-1].content:
            while not self.released.is_set():
                with suppress(anyio.get_cancelled_exc_class()):
                    await self.released.wait()
        return await super().complete(request)


class Slow:
    """A healthy call that takes its time."""

    spec = ToolSpec(name="slow", description="Take a while.", parameters={"type": "object"})
    timeout_s = None

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        await anyio.sleep(0.05)
        return "done"


@asynccontextmanager
async def watched(
    folder: Path, model: LLMAdapter, *, timeout_s: float = 0.3, grace_s: float = 0.1
) -> AsyncIterator[tuple[Rig, Alerts]]:
    async with running(
        folder,
        model,
        tools=[Slow()],
        turn_timeout_s=timeout_s,
        cap=1,
        limits=RunLimits(max_iterations=50, max_tool_calls=200),
    ) as rig:
        alerts = Alerts(
            store=rig.store,
            clock=SystemClock(),
            announce=rig.dispatcher.announce,
            channels=lambda: {"api"},
        )
        dog = Watchdog(loop=rig.loop, store=rig.store, alerts=alerts, step_s=0.05, grace_s=grace_s)
        rig.tasks.start_soon(alerts.run)
        rig.tasks.start_soon(dog.run)
        try:
            yield rig, alerts
        finally:
            if isinstance(model, Deaf):
                model.released.set()


async def test_a_turn_that_swallows_its_end_is_given_up_and_what_waits_is_answered(
    tmp_path: Path,
) -> None:
    """Key and slot are free, the recovery is looked at before it is logged, and what the turn does
    afterwards changes nothing. (openclaw/openclaw#128851, #92270)"""
    model = Deaf()
    with capture_logs() as logs:
        async with watched(tmp_path, model) as (rig, alerts):
            first = await rig.say("hang")
            await anyio.sleep(0.05)
            second = await rig.say("second")
            third = await rig.say("third")
            assert "gave it up" in (await rig.reply_to(first)).content
            assert (await rig.reply_to(second)).content == "an answer"
            assert (await rig.reply_to(third)).content == "an answer"
            await rig.quiet()
            assert (rig.gate.held, rig.gate.waiting) == (0, 0)
            assert [alert.kind for alert in alerts.open()] == ["watchdog"]
            stuck = (await rig.reply_to(first)).turn_id
            assert rig.phases(stuck).count(Phase.DONE) == 1
            before = await rig.replies()
            model.released.set()
            await anyio.sleep(0.1)
            assert await rig.replies() == before
            assert rig.gate.held == 0
            assert (await rig.reply_to(await rig.say("still there?"))).content == "an answer"
    events = [entry["event"] for entry in logs]
    assert events.count("turn_stuck") == events.count("turn_freed") == 1
    assert "turn_not_freed" not in events


async def test_one_that_is_stopped_and_does_not_go_is_given_up_too(tmp_path: Path) -> None:
    model = Deaf()
    async with watched(tmp_path, model, timeout_s=60) as (rig, _):
        first = await rig.say("hang")
        await anyio.sleep(0.05)
        await rig.loop.stop(SessionKey(channel="api", chat_id="c"))
        assert (await rig.reply_to(first)).content == "Stopped."
        assert (await rig.reply_to(await rig.say("go on"))).content == "an answer"
        finals = [text for text in await rig.replies() if text.kind == "final"]
        assert len(finals) == 2


async def test_a_long_turn_that_makes_progress_is_not_touched(tmp_path: Path) -> None:
    """(openclaw/openclaw#143396)"""
    calls: list[Scripted] = [
        (ToolCall(id=f"c{number}", name="slow", arguments={"n": number}),) for number in range(20)
    ]
    with capture_logs() as logs:
        async with watched(tmp_path, ScriptedModel([*calls, "all done"]), timeout_s=60) as (
            rig,
            alerts,
        ):
            asked = await rig.say("work")
            assert (await rig.reply_to(asked)).content == "all done"
            assert alerts.open() == []
    assert not [entry for entry in logs if entry["event"].startswith("turn_")]


async def test_a_blocked_event_loop_is_seen_from_outside_with_its_place(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with watched(tmp_path, ScriptedModel(default="an answer")) as (rig, alerts):
            await rig.reply_to(await rig.say("hello"))
            _block_the_loop(0.5)
            with anyio.fail_after(10):
                while not alerts.open():
                    await anyio.sleep(0.01)
            [alert] = alerts.open()
    [blocked] = [entry for entry in logs if entry["event"] == "event_loop_blocked"]
    assert "_block_the_loop" in blocked["at"]
    assert re.search(r"test_watchdog\.py", alert.text)
    assert [entry["event"] for entry in logs].count("event_loop_answers_again") == 1


def _block_the_loop(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def test_a_writer_that_does_not_answer_is_told_until_it_does(tmp_path: Path) -> None:
    release = threading.Event()
    with capture_logs() as logs:
        async with watched(tmp_path, ScriptedModel(default="an answer")) as (rig, alerts):
            async with anyio.create_task_group() as tasks:
                stuck = rig.store.admin._database
                tasks.start_soon(stuck.upkeep, "hanging", lambda connection: release.wait(20))
                with anyio.fail_after(10):
                    while not alerts.of("database"):
                        await anyio.sleep(0.01)
                release.set()
                with anyio.fail_after(10):
                    while alerts.of("database"):
                        await anyio.sleep(0.01)
            assert (await rig.reply_to(await rig.say("hello"))).content == "an answer"
    silent = [entry for entry in logs if entry["event"] == "writer_silent"]
    assert "release.wait" in silent[0]["at"]
