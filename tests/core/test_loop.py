"""One live turn per key, steering, the order of entries, stop and new: over the real store."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from teaagentd.abc import ToolContext
from teaagentd.agent.runner import RunLimits
from teaagentd.errors import (
    BusFull,
    DirectTurnDeadlock,
    InvalidMessage,
    ProviderUnavailable,
    TurnNotAnswered,
)
from teaagentd.testing import ScriptedModel
from teaagentd.types import (
    Address,
    Effect,
    InboundMessage,
    JsonObject,
    LLMMessage,
    LLMRequest,
    Phase,
    SessionKey,
    ToolCall,
    ToolSpec,
)
from tests.core.rig import Rig, running

pytestmark = pytest.mark.anyio


class Blocking:
    """A tool that reports and then waits until it is let go."""

    timeout_s: float | None = None

    def __init__(self, name: str = "block") -> None:
        self.spec = ToolSpec(
            name=name, description="waits", parameters={"type": "object", "properties": {}}
        )
        self.entered = anyio.Event()
        self.let_go = anyio.Event()
        self.ended = 0

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        self.entered.set()
        try:
            await self.let_go.wait()
        finally:
            self.ended += 1
        return "let go"


def call(name: str = "block", call_id: str = "1") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments={})


def texts(request: LLMRequest, role: str = "user") -> list[str]:
    return [message.content for message in request.messages if message.role == role]


def held(text: str, event: anyio.Event):  # type: ignore[no-untyped-def]  # a reply function
    async def reply(request: LLMRequest) -> str:
        await event.wait()
        return text

    return reply


async def test_a_message_is_answered_and_says_which_it_answers(tmp_path: Path) -> None:
    model = ScriptedModel(["hello back"])
    async with running(tmp_path, model) as rig:
        accepted = await rig.say("hello")
        reply = await rig.reply_to(accepted)
        await rig.quiet()
        assert (reply.kind, reply.content) == ("final", "hello back")
        assert reply.message_ids == (accepted.id,)
        assert len(await rig.replies()) == 1
        assert rig.phases().count(Phase.DONE) == 1
        assert rig.gate.held == 0


async def test_l01_everything_sent_in_mid_turn_is_folded_once_in_order(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "all done"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        first = await rig.say("start")
        await tool.entered.wait()
        more = [await rig.say(f"m{number}") for number in range(1, 6)]
        tool.let_go.set()
        reply = await rig.reply_to(first)
        await rig.quiet()
        assert reply.message_ids == (first.id, *(one.id for one in more))
        assert texts(model.requests[1]) == ["start", "m1", "m2", "m3", "m4", "m5"]
        assert [message.role for message in model.requests[1].messages[-7:]] == (
            ["assistant", "tool"] + ["user"] * 5
        )
        assert len(await rig.replies()) == 1
        assert not model.refused


async def test_an_answer_overtaken_by_steering_is_delivered_as_interim(tmp_path: Path) -> None:
    go = anyio.Event()
    model = ScriptedModel([held("first answer", go), "second answer"])
    async with running(tmp_path, model) as rig:
        one = await rig.say("one")
        await model.wait_asked(1)
        two = await rig.say("two")
        go.set()
        assert (await rig.reply_to(two)).content == "second answer"
        await rig.quiet()
        kinds = [(reply.kind, reply.content, reply.message_ids) for reply in await rig.replies()]
        assert kinds == [
            ("interim", "first answer", (one.id,)),
            ("final", "second answer", (two.id,)),
        ]
        assert texts(model.requests[1]) == ["one", "two"]
        assert texts(model.requests[1], "assistant") == ["first answer"]


async def test_l02_a_message_in_the_last_iteration_opens_the_next_turn(tmp_path: Path) -> None:
    tool, go = Blocking(), anyio.Event()
    tool.let_go.set()
    model = ScriptedModel([call(), held("end of the first", go), "of the second"])
    limits = RunLimits(max_iterations=2)
    async with running(tmp_path, model, tools=[tool], limits=limits) as rig:
        await rig.say("work")
        await model.wait_asked(2)
        late = await rig.say("late")
        go.set()
        assert (await rig.reply_to(late)).content == "of the second"
        await rig.quiet()
        assert [reply.kind for reply in await rig.replies()] == ["final", "final"]


async def test_l02_a_message_while_the_provider_fails_for_good_is_answered(tmp_path: Path) -> None:
    go = anyio.Event()

    async def broken(request: LLMRequest) -> Exception:
        await go.wait()
        return ProviderUnavailable("500")

    model = ScriptedModel([broken, broken, broken, "works again"])
    async with running(tmp_path, model) as rig:
        first = await rig.say("one")
        await model.wait_asked(1)
        late = await rig.say("late")
        go.set()
        failed, answered = await rig.reply_to(first), await rig.reply_to(late)
        await rig.quiet()
        assert failed.message_ids == (first.id,)
        assert answered.content == "works again"
        assert len(await rig.replies()) == 2


async def test_l02_a_message_during_an_empty_answer_is_answered_once(tmp_path: Path) -> None:
    go = anyio.Event()
    model = ScriptedModel([held("", go), "asked again", "to the late one"])
    async with running(tmp_path, model) as rig:
        await rig.say("one")
        await model.wait_asked(1)
        late = await rig.say("late")
        go.set()
        assert (await rig.reply_to(late)).content == "to the late one"
        await rig.quiet()
        assert [reply.content for reply in await rig.replies()] == [
            "asked again",
            "to the late one",
        ]
        assert all("" not in texts(request) for request in model.requests)


async def test_l07_a_stop_keeps_what_was_said_and_done(tmp_path: Path) -> None:
    done, stuck = Blocking("read"), Blocking("exec")
    done.let_go.set()
    model = ScriptedModel([call("read", "r"), call("exec", "x"), "you asked for a summary"])
    async with running(tmp_path, model, tools=[done, stuck]) as rig:
        first = await rig.say("summarise a.txt")
        await stuck.entered.wait()
        stop = await rig.say("/stop")
        stopped = await rig.reply_to(stop)
        assert stopped.message_ids == (first.id, stop.id)
        await rig.quiet()
        assert stuck.ended == 1, "the tool's task is gone"
        after = await rig.say("what did I ask?")
        await rig.reply_to(after)
        request = model.requests[-1]
        assert texts(request)[0] == "summarise a.txt"
        results = {m.tool_call_id: m.content for m in request.messages if m.role == "tool"}
        assert results["r"] == "let go"
        assert "interrupted" in results["x"]
        assert not model.refused


async def test_l08_messages_behind_a_stopped_turn_start_the_next(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "both answered"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        await rig.say("work")
        await tool.entered.wait()
        waiting = [await rig.say("m1"), await rig.say("m2")]
        await rig.say("/stop")
        reply = await rig.reply_to(waiting[1])
        assert reply.message_ids == tuple(one.id for one in waiting)
        assert texts(model.requests[1]) == ["work", "m1", "m2"]


async def test_stop_holds_while_the_provider_hangs_and_the_inbox_is_full(tmp_path: Path) -> None:
    async def hang(request: LLMRequest) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    model = ScriptedModel([hang, "after"])
    async with running(tmp_path, model, max_pending=1) as rig:
        await rig.say("work")
        await model.wait_asked(1)
        kept = await rig.say("waits")
        with pytest.raises(BusFull):
            await rig.say("one too many")
        stop = await rig.say("/stop")
        assert stop.id in (await rig.reply_to(stop)).message_ids
        assert (await rig.reply_to(kept)).content == "after"


async def test_a_stop_before_the_slot_came_closes_what_waits(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "first done"])
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        first = await rig.say("work", "a")
        await tool.entered.wait()
        waiting = await rig.say("never mind", "b")
        stop = await rig.say("/stop", "b")
        reply = await rig.reply_to(stop)
        assert reply.message_ids == (waiting.id, stop.id)
        tool.let_go.set()
        await rig.reply_to(first)
        await rig.quiet()
        assert len(model.requests) == 2


async def test_the_same_command_delivered_twice_acts_once(tmp_path: Path) -> None:
    model = ScriptedModel(["a", "b"])
    async with running(tmp_path, model) as rig:
        await rig.reply_to(await rig.say("one"))
        first = await rig.say("/new", external_id="7")
        await rig.reply_to(await rig.say("two"))
        second = await rig.say("/new", external_id="7")
        assert (second.id, second.duplicate) == (first.id, True)
        await rig.reply_to(first)
        session = (await rig.store.sessions())[0]
        assert session.generation == 2


async def test_l11_strict_order_whatever_the_entry_and_new_is_final(tmp_path: Path) -> None:
    go = anyio.Event()
    model = ScriptedModel([held("too late", go), "direct answer", "fresh"])
    async with running(tmp_path, model) as rig:
        user = await rig.say("from the bus")
        await model.wait_asked(1)
        answers: list[str] = []

        async def direct() -> None:
            answers.append(await rig.loop.process_direct("from cron", "api:c"))

        async with anyio.create_task_group() as group:
            group.start_soon(direct)
            await anyio.wait_all_tasks_blocked()
            assert len(model.requests) == 1, "one live turn"
            new = await rig.say("/new")
            assert (await rig.reply_to(user)).id == (await rig.reply_to(new)).id
            go.set()
        await rig.reply_to(await rig.say("anything left?"))
        assert answers == ["direct answer"]
        assert texts(model.requests[1]) == ["from cron"]
        assert texts(model.requests[2]) == ["from cron", "anything left?"]
        assert all("too late" not in m.content for m in model.requests[2].messages)


async def test_rows_after_a_waiting_direct_turn_are_not_folded_before_it(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "one and two", "direct", "three"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        await rig.say("one")
        await tool.entered.wait()
        await rig.say("two")
        async with anyio.create_task_group() as group:
            group.start_soon(rig.loop.process_direct, "direct request", "c")
            await anyio.wait_all_tasks_blocked()
            three = await rig.say("three")
            tool.let_go.set()
        assert (await rig.reply_to(three)).content == "three"
        asked = [texts(request) for request in model.requests[1:]]
        assert asked == [
            ["one", "two"],
            ["one", "two", "direct request"],
            ["one", "two", "direct request", "three"],
        ]


async def test_a_direct_turn_is_steerable_and_returns_all_it_was_told(tmp_path: Path) -> None:
    go = anyio.Event()
    model = ScriptedModel([held("to the caller", go), "to both"])
    async with running(tmp_path, model) as rig:
        said: list[str] = []

        async def direct() -> None:
            said.append(await rig.loop.process_direct("question", "c"))

        async with anyio.create_task_group() as group:
            group.start_soon(direct)
            await model.wait_asked(1)
            steering = await rig.say("and this?")
            go.set()
        assert said == ["to the caller\n\nto both"]
        replies = await rig.replies()
        assert [(reply.kind, reply.content) for reply in replies] == [("final", "to both")]
        assert replies[0].message_ids == (steering.id,)


async def test_a_waiting_direct_turn_can_be_cancelled(tmp_path: Path) -> None:
    go = anyio.Event()
    model = ScriptedModel([held("one", go), "two"])
    async with running(tmp_path, model) as rig:
        first = await rig.say("one")
        await model.wait_asked(1)
        with anyio.move_on_after(0.05):
            await rig.loop.process_direct("given up", "c")
        two = await rig.say("two")
        go.set()
        await rig.reply_to(first)
        await rig.reply_to(two)
        assert all("given up" not in texts(request) for request in model.requests)


async def test_a_cancelled_direct_turn_leaves_a_legal_history_and_a_free_key(
    tmp_path: Path,
) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "next"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        async with anyio.create_task_group() as group:
            group.start_soon(rig.loop.process_direct, "begun", "c")
            await tool.entered.wait()
            group.cancel_scope.cancel()
        assert rig.gate.held == 0
        await rig.reply_to(await rig.say("hi"))
        assert not model.refused
        assert texts(model.requests[-1]) == ["begun", "hi"]


async def test_a_stopped_direct_turn_raises_and_says_how_it_ended(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call()])
    async with running(tmp_path, model, tools=[tool]) as rig, anyio.create_task_group() as group:

        async def stop() -> None:
            await tool.entered.wait()
            await rig.loop.stop(SessionKey.parse("c"))

        group.start_soon(stop)
        with pytest.raises(TurnNotAnswered) as caught:
            await rig.loop.process_direct("work", "c")
        assert caught.value.outcome == "stopped"


class Delegating:
    """A tool that runs a direct turn on the key it is given."""

    timeout_s: float | None = None

    def __init__(self) -> None:
        self.spec = ToolSpec(
            name="delegate",
            description="asks another session",
            parameters={"type": "object", "properties": {"key": {"type": "string"}}},
            effects=frozenset({Effect.NONE}),
        )
        self.rig: Rig | None = None
        self.raised: list[Exception] = []

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        assert self.rig is not None
        try:
            return await self.rig.loop.process_direct("subtask", str(arguments["key"]))
        except DirectTurnDeadlock as error:
            self.raised.append(error)
            raise


def delegate(key: str) -> ToolCall:
    return ToolCall(id="d", name="delegate", arguments={"key": key})


def by_content(table: dict[str, ToolCall | str]):  # type: ignore[no-untyped-def]  # a reply function
    """Answers by the last message: a tool result is answered with `done`."""

    async def reply(request: LLMRequest) -> ToolCall | str:
        last = request.messages[-1]
        return table.get(last.content, "done") if last.role == "user" else "done"

    return reply


async def test_l13_parents_that_wait_hold_no_slot(tmp_path: Path) -> None:
    tool = Delegating()
    model = ScriptedModel(default=by_content({"a": delegate("sub:a"), "b": delegate("sub:b")}))
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        tool.rig = rig
        both = [await rig.say("a", "a"), await rig.say("b", "b")]
        for accepted in both:
            assert (await rig.reply_to(accepted)).content == "done"
        third = await rig.say("c", "c")
        assert (await rig.reply_to(third)).content == "done"
        assert (rig.gate.held, rig.gate.parked) == (0, 0)


async def test_a_direct_turn_on_ones_own_key_raises_instead_of_waiting(tmp_path: Path) -> None:
    tool = Delegating()
    model = ScriptedModel(default=by_content({"go": delegate("api:c")}))
    async with running(tmp_path, model, tools=[tool]) as rig:
        tool.rig = rig
        assert (await rig.reply_to(await rig.say("go"))).content == "done"
        assert [type(error) for error in tool.raised] == [DirectTurnDeadlock]


async def test_a_ring_of_direct_turns_is_refused_to_whoever_closes_it(tmp_path: Path) -> None:
    tool = Delegating()
    both = anyio.Event()
    asked = 0

    async def reply(request: LLMRequest) -> ToolCall | str:
        nonlocal asked
        last = request.messages[-1].content
        if last in ("to y", "to x"):
            asked += 1
            if asked == 2:
                both.set()
            await both.wait()
            return delegate(f"api:{last[-1]}")
        return "done"

    model = ScriptedModel(default=reply)
    async with running(tmp_path, model, tools=[tool]) as rig:
        tool.rig = rig
        one, two = await rig.say("to y", "x"), await rig.say("to x", "y")
        assert (await rig.reply_to(one)).content == "done"
        assert (await rig.reply_to(two)).content == "done"
        await rig.quiet()
        assert len(tool.raised) == 1


async def test_the_gate_is_fair_and_waiting_is_steerable(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "a", "b", "c"])
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        await rig.say("a", "a")
        await tool.entered.wait()
        b = await rig.say("b", "b")
        c = await rig.say("c", "c")
        b2 = await rig.say("more b", "b")
        tool.let_go.set()
        assert (await rig.reply_to(b)).message_ids == (b.id, b2.id)
        await rig.reply_to(c)
        assert [texts(request)[-1] for request in model.requests[2:]] == ["more b", "c"]


async def test_an_ephemeral_turn_sees_and_leaves_no_history(tmp_path: Path) -> None:
    model = ScriptedModel(["remembered", "HEARTBEAT_OK", "still here"])
    async with running(tmp_path, model) as rig:
        await rig.reply_to(await rig.say("hello"))
        assert await rig.loop.process_ephemeral("anything to do?") == "HEARTBEAT_OK"
        await rig.reply_to(await rig.say("again"))
        assert texts(model.requests[1]) == ["anything to do?"]
        assert texts(model.requests[2]) == ["hello", "again"]
        assert [str(record.key) for record in await rig.store.sessions()] == ["api:c"]


async def test_last_channel_is_the_newest_external_one_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(default="ok")
    async with running(tmp_path, model) as rig:
        assert await rig.loop.last_channel() is None
        await rig.reply_to(await rig.say("hi", "first"))
        await rig.reply_to(await rig.say("hi", "second", channel="terminal"))
        await rig.loop.process_direct("cron", "cron:1")
    async with running(tmp_path, model) as rig:
        assert await rig.loop.last_channel() == Address(channel="terminal", chat_id="second")


async def test_a_raising_activity_watcher_does_no_harm(tmp_path: Path) -> None:
    model = ScriptedModel(["fine"])
    async with running(tmp_path, model) as rig:
        rig.loop.on_activity(lambda activity: 1 / 0)  # type: ignore[arg-type, return-value]  # raises
        assert (await rig.reply_to(await rig.say("hi"))).content == "fine"


class Memory:
    """A memory engine that recalls what it is told to, and is slow to store."""

    def __init__(self, recalled: list[str]) -> None:
        self.recalled = recalled
        self.stored: list[list[str]] = []
        self.may_store = anyio.Event()

    async def recall(self, key: SessionKey, text: str) -> list[str]:
        return self.recalled

    async def remember(self, key: SessionKey, exchange: tuple[LLMMessage, ...]) -> None:
        await self.may_store.wait()
        self.stored.append([message.content for message in exchange])


async def test_memories_are_noted_once_and_stored_in_the_background(tmp_path: Path) -> None:
    memory = Memory(["the owner likes [green] tea"])
    model = ScriptedModel(["one", "two"])
    async with running(tmp_path, model, memory=memory) as rig:
        await rig.reply_to(await rig.say("first"))
        assert not await rig.loop.wait_background(0.01)
        memory.may_store.set()
        assert await rig.loop.wait_background(10)
        assert memory.stored == [["first", "one"]]
        await rig.reply_to(await rig.say("second"))
        notes = [message.note or "" for message in model.requests[1].messages[1:]]
        assert sum("tea" in note for note in notes) == 1


async def test_a_prompt_starts_with_the_bytes_of_the_one_before(tmp_path: Path) -> None:
    tool = Blocking()
    tool.let_go.set()
    model = ScriptedModel(["one", call(), "two", "three"])
    async with running(tmp_path, model, tools=[tool]) as rig:
        for number in range(3):
            await rig.reply_to(await rig.say(f"m{number}"))
        for earlier, later in zip(model.requests, model.requests[1:], strict=False):
            assert earlier.tools == later.tools
            sent = [(m.role, m.content, m.note, m.tool_calls) for m in earlier.messages]
            assert [(m.role, m.content, m.note, m.tool_calls) for m in later.messages][
                : len(sent)
            ] == sent


@pytest.mark.parametrize("content", ["", "   ", None, 42])
async def test_what_can_never_be_answered_is_refused_at_the_door(
    tmp_path: Path, content: object
) -> None:
    async with running(tmp_path, ScriptedModel()) as rig:
        with pytest.raises(InvalidMessage):
            await rig.bus.publish(
                InboundMessage(channel="api", chat_id="c", content=content)  # type: ignore[arg-type]  # on purpose
            )


@pytest.mark.parametrize(
    "chats", [("a_b", "a:b"), ("a/b", "a_b"), ("A_B", "a_b"), ("", "."), ("x" * 300, "x" * 299)]
)
async def test_l18_chats_that_look_alike_do_not_share_a_session(
    tmp_path: Path, chats: tuple[str, str]
) -> None:
    model = ScriptedModel(["one", "two"])
    async with running(tmp_path, model) as rig:
        for chat in chats:
            await rig.reply_to(await rig.say(f"in {chat[:5]}", chat))
        assert len(texts(model.requests[1])) == 1
        assert len(await rig.store.sessions()) == 2
