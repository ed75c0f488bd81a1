"""What a restart finds, and how a turn ends that does not end by itself."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from teaagentd.abc import SystemClock, ToolContext
from teaagentd.errors import ShuttingDown, TurnNotAnswered
from teaagentd.store import Store
from teaagentd.store.values import Accepted, Begun, NewTurn
from teaagentd.testing import ScriptedModel
from teaagentd.types import (
    InboundMessage,
    JsonObject,
    LLMMessage,
    Phase,
    SessionKey,
    ToolCall,
    ToolSpec,
)
from tests.core.rig import running
from tests.core.test_loop import Blocking, call, held, texts

pytestmark = pytest.mark.anyio


async def left_behind(
    folder: Path, *, chat: str = "c", calls: tuple[ToolCall, ...] = (), started: int = 0
) -> Accepted:
    """A turn that a killed daemon left running, with `calls` decided and some of them started;
    its message."""
    (folder / "workspace").mkdir(exist_ok=True)
    store = await Store.open(folder / "state.db", clock=SystemClock())
    accepted = await store.accept(InboundMessage(channel="api", chat_id=chat, content="work"))
    begun = await store.begin(
        NewTurn(id=f"turn-{chat}", key=accepted.session_key, origin="bus"),
        upto=None,
        budget_tokens=None,
        note=lambda row: None,
    )
    assert begun is not None
    if calls:
        message = LLMMessage(role="assistant", tool_calls=calls)
        await store.decide(begun.turn_id, message, notice=None, attempts=())
    for one in calls[:started]:
        await store.start_call(begun.turn_id, one.id)
    await store.aclose()
    return accepted


async def test_l10_a_turn_cut_off_in_its_calls_goes_on_and_reruns_nothing(tmp_path: Path) -> None:
    tool = Blocking()
    first = await left_behind(tmp_path, calls=(call(call_id="a"), call(call_id="b")), started=1)
    model = ScriptedModel(["done after all", "hi"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        assert (await rig.reply_to(first)).content == "done after all"
        await rig.reply_to(await rig.say("hi"))
        replies = await rig.replies()
        assert [reply.kind for reply in replies] == ["notice", "final", "final"]
        results = [m.content for m in model.requests[0].messages if m.role == "tool"]
        assert "unknown" in results[0]
        assert "not run" in results[1]
        assert not tool.entered.is_set()
        repaired = [m for m in model.requests[1].messages if m.role == "tool"]
        assert [m.content for m in repaired] == results, "the repair does not grow"


async def test_a_turn_that_brings_the_daemon_down_three_times_is_set_aside(tmp_path: Path) -> None:
    first = await left_behind(tmp_path)
    for _ in range(2):
        store = await Store.open(tmp_path / "state.db", clock=SystemClock())
        assert isinstance(await store.resume("turn-c", notice=None, failed=""), Begun)
        await store.aclose()
    model = ScriptedModel(["of the next one", "of the retried one"])
    async with running(tmp_path, model) as rig:
        assert "gave up" in (await rig.reply_to(first)).content
        dead = await rig.store.dead_rows()
        assert [row.id for row in dead] == [first.id]
        assert not model.requests
        await rig.reply_to(await rig.say("next"))
        retried = await rig.store.retry_dead(first.id)
        rig.bus.admit(retried)
        assert (await rig.reply_to(retried)).content == "of the retried one"
        assert not await rig.store.dead_rows()


async def test_crashed_turns_are_resumed_one_at_a_time(tmp_path: Path) -> None:
    for chat in ("a", "b"):
        await left_behind(tmp_path, chat=chat)
    go = anyio.Event()
    model = ScriptedModel([held("one", go), "two"])
    async with running(tmp_path, model) as rig:
        await model.wait_asked(1)
        fresh = await rig.say("bystander", "fresh")
        await anyio.wait_all_tasks_blocked()
        crashed = [request for request in model.requests if texts(request) == ["work"]]
        assert len(crashed) == 1
        go.set()
        await rig.reply_to(fresh)
        await rig.quiet()


async def test_a_direct_turn_is_closed_as_interrupted_after_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "state.db", clock=SystemClock())
    opening = LLMMessage(role="user", content="direct")
    key = SessionKey.parse("c")
    await store.begin(
        NewTurn(id="d", key=key, origin="direct", opening=opening),
        upto=None,
        budget_tokens=None,
        note=lambda row: None,
    )
    await store.aclose()
    model = ScriptedModel(["hello"])
    async with running(tmp_path, model) as rig:
        await rig.reply_to(await rig.say("hi"))
        record = await rig.store.turn("d")
        assert record is not None
        assert record.outcome == "interrupted"
        assert texts(model.requests[0]) == ["direct", "hi"]


async def test_a_planned_end_parks_the_turn_and_does_not_count(tmp_path: Path) -> None:
    tool = Blocking()
    async with running(tmp_path, ScriptedModel([call()]), tools=[tool]) as rig:
        first = await rig.say("work")
        await tool.entered.wait()
    model = ScriptedModel(["resumed"])
    async with running(tmp_path, model, tools=[Blocking()]) as rig:
        reply = await rig.reply_to(first)
        assert reply.content == "resumed"
        assert reply.turn_id is not None
        record = await rig.store.turn(reply.turn_id)
        assert record is not None
        assert record.attempt == 1


async def test_l16_a_drain_lets_the_turn_end_and_leaves_the_queue_for_the_next_start(
    tmp_path: Path,
) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "finished in time"])
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        first = await rig.say("work")
        await tool.entered.wait()
        behind = await rig.say("queued behind")
        elsewhere = await rig.say("waits for a slot", "other")
        await anyio.wait_all_tasks_blocked()
        rig.loop.begin_drain()
        with pytest.raises(ShuttingDown):
            await rig.loop.process_direct("too late", "x")
        assert any("api:c" in line for line in rig.loop.waiting_for())
        tool.let_go.set()
        await rig.loop.drained()
        assert (await rig.reply_to(first)).message_ids == (first.id,)
        assert len(model.requests) == 2
    later = ScriptedModel(default="after the restart")
    async with running(tmp_path, later) as rig:
        for accepted in (behind, elsewhere):
            assert (await rig.reply_to(accepted)).content == "after the restart"


async def test_l16_a_turn_that_asks_for_the_end_is_not_waited_for(tmp_path: Path) -> None:
    class Restarting(Blocking):
        async def run(self, arguments: JsonObject, context: ToolContext) -> str:
            rig.loop.begin_drain()
            await rig.loop.drained()
            return "ends"

    model = ScriptedModel([call(), "bye"])
    async with running(tmp_path, model, tools=[Restarting()]) as rig:
        assert (await rig.reply_to(await rig.say("restart yourself"))).content == "bye"


async def test_a_turn_past_its_deadline_is_closed_and_frees_key_and_slot(tmp_path: Path) -> None:
    model = ScriptedModel([held("never", anyio.Event()), "the next one"])
    async with running(tmp_path, model, turn_timeout_s=0.2, cap=1) as rig:
        first = await rig.say("slow")
        assert "ran out of time" in (await rig.reply_to(first)).content
        assert (await rig.reply_to(await rig.say("next"))).content == "the next one"
        assert rig.gate.held == 0
        assert rig.phases().count(Phase.DONE) == 2


class Stubborn:
    """A tool that waits for what never comes and swallows cancellation, again and again."""

    timeout_s: float | None = 0.1

    def __init__(self, swallows: int) -> None:
        self.spec = ToolSpec(
            name="block", description="hangs", parameters={"type": "object", "properties": {}}
        )
        self.swallows = swallows
        self.over = anyio.Event()

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        for _ in range(self.swallows):
            try:
                await self.over.wait()
            except anyio.get_cancelled_exc_class():
                continue
            break
        return "too late to count"


@pytest.mark.parametrize("swallows", [1, 1000])
async def test_l14_a_tool_that_will_not_end_costs_its_call_and_nothing_else(
    tmp_path: Path, swallows: int
) -> None:
    tool = Stubborn(swallows)
    model = ScriptedModel([call(), "went on", "two", "three"])
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        first = await rig.say("hang")
        await model.wait_asked(1)
        others = [await rig.say("two", "b"), await rig.say("three", "d")]
        assert (await rig.reply_to(first)).content == "went on"
        for accepted in others:
            await rig.reply_to(accepted)
        result = next(m for m in model.requests[1].messages if m.role == "tool")
        assert result.content.startswith("[timed out")
        assert rig.gate.held == 0
        tool.over.set()


async def test_the_deadline_stands_still_while_a_child_works(tmp_path: Path) -> None:
    """The parent's own limit is 0.5 s; it outlives a child that is closed at 0.5 s itself, and a
    second one after that."""

    class Asking(Blocking):
        async def run(self, arguments: JsonObject, context: ToolContext) -> str:
            ends = []
            for number in (1, 2):
                try:
                    await rig.loop.process_direct("sub", f"sub:{number}")
                except TurnNotAnswered as end:
                    ends.append(end.outcome)
            return " ".join(ends)

    never = held("never", anyio.Event())
    model = ScriptedModel([call(), never, never, "outlived both"])
    async with running(tmp_path, model, tools=[Asking()], turn_timeout_s=0.5) as rig:
        assert (await rig.reply_to(await rig.say("parent"))).content == "outlived both"
        result = next(m for m in model.requests[3].messages if m.role == "tool")
        assert result.content == "timeout timeout"


async def test_l09_a_call_that_raises_does_not_hide_its_sibling(tmp_path: Path) -> None:
    class Raising(Blocking):
        async def run(self, arguments: JsonObject, context: ToolContext) -> str:
            raise RuntimeError("broken inside")

    fine = Blocking("fine")
    fine.let_go.set()
    model = ScriptedModel([(call(call_id="a"), call("fine", "b")), "both seen", "later"])
    async with running(tmp_path, model, tools=[Raising(), fine]) as rig:
        await rig.reply_to(await rig.say("both"))
        await rig.reply_to(await rig.say("and now?"))
        results = {
            m.tool_call_id: m.content for m in model.requests[2].messages if m.role == "tool"
        }
        assert results["b"] == "let go"
        assert "error" in results["a"]
        assert not model.refused
