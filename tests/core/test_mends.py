"""Ways in which a turn, a key or a slot was once left behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import anyio
import pytest

from teaagentd.abc import SystemClock, ToolContext
from teaagentd.core import loop as loop_module
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.gate import Gate
from teaagentd.core.turn import Turn
from teaagentd.errors import StoreUnavailable
from teaagentd.store import Store
from teaagentd.testing import ScriptedModel
from teaagentd.types import Address, JsonObject, OutboundMessage, Phase, Reply, SessionKey
from tests.core.rig import Rig, running
from tests.core.test_gate import slot_of
from tests.core.test_loop import Blocking, call, held
from tests.core.test_resume import left_behind

pytestmark = pytest.mark.anyio


async def test_a_wait_that_raises_still_takes_its_slot_back() -> None:
    gate = Gate(1)
    trace: list[str] = []
    slot = slot_of(gate, trace)
    await slot.acquire()
    slot.call_opened()
    with pytest.raises(TimeoutError):
        async with slot.waiting():
            raise TimeoutError
    assert (gate.held, gate.parked) == (1, 0)
    assert trace == ["pause", "go"]


async def test_a_call_whose_wait_was_cut_off_settles_before_the_turn_goes_on() -> None:
    gate = Gate(1)
    slot = slot_of(gate)
    await slot.acquire()
    slot.call_opened()
    with anyio.move_on_after(0.01):
        async with slot.waiting():
            await anyio.sleep_forever()
    assert gate.held == 0
    slot.call_closed()
    await slot.settle()
    assert (gate.held, gate.parked) == (1, 0)


async def test_a_call_that_starts_while_another_waits_has_a_slot() -> None:
    gate = Gate(1)
    slot = slot_of(gate)
    await slot.acquire()
    slot.call_opened()
    async with slot.waiting():
        assert gate.held == 0
        slot.call_opened()
        await slot.settle()
        assert gate.held == 1
        slot.call_closed()
        assert gate.held == 0


async def test_a_turn_after_a_wait_that_failed_keeps_within_the_cap(tmp_path: Path) -> None:
    class Asking(Blocking):
        async def run(self, arguments: JsonObject, context: ToolContext) -> str:
            async with context.waiting("a person"):
                raise TimeoutError("nobody came")

    go = anyio.Event()
    model = ScriptedModel([call(), held("went on", go), "the other"])
    async with running(tmp_path, model, tools=[Asking()], cap=1) as rig:
        first = await rig.say("ask", "a")
        await model.wait_asked(2)
        other = await rig.say("other", "b")
        await anyio.wait_all_tasks_blocked()
        assert (rig.gate.held, len(model.requests)) == (1, 2)
        go.set()
        await rig.reply_to(first)
        await rig.reply_to(other)


async def test_a_key_with_half_a_character_is_one_key_from_the_door_on(tmp_path: Path) -> None:
    tool = Blocking()
    model = ScriptedModel([call(), "hog done"])
    async with running(tmp_path, model, tools=[tool], cap=1) as rig:
        hog = await rig.say("hog", "hog")
        await tool.entered.wait()
        await rig.say("hello", "s\ud800")
        stop = await rig.say("/stop", "s\ud800")
        assert stop.session_key == SessionKey(channel="api", chat_id="s\ufffd")
        await rig.reply_to(stop)
        tool.let_go.set()
        await rig.reply_to(hog)
        await rig.quiet()
        assert rig.bus.first_pending(stop.session_key) is None


async def test_a_row_that_is_pending_only_here_does_not_keep_a_key_busy(tmp_path: Path) -> None:
    model = ScriptedModel(default="ok")
    async with running(tmp_path, model) as rig:
        done = await rig.say("one")
        await rig.reply_to(done)
        await rig.quiet()
        begun = rig.phases().count(Phase.DONE)
        rig.bus.admit(done)  # as a snapshot that is too old would
        await anyio.sleep(0.2)
        assert rig.phases().count(Phase.DONE) - begun <= 1
        assert rig.bus.first_pending(done.session_key) is None


async def test_a_stop_frees_a_turn_that_waits_to_go_on(tmp_path: Path) -> None:
    first, second = await left_behind(tmp_path, chat="a"), await left_behind(tmp_path, chat="b")
    go = anyio.Event()
    model = ScriptedModel([held("resumed", go), "hi back"])
    async with running(tmp_path, model) as rig:
        await model.wait_asked(1)
        assert [str(one.key) for one in rig.loop.line()] == ["api:b"]
        stop = await rig.say("/stop", "b")
        assert (await rig.reply_to(stop)).message_ids == (second.id, stop.id)
        assert (await rig.reply_to(await rig.say("hi", "b"))).content == "hi back"
        go.set()
        assert (await rig.reply_to(first)).content == "resumed"
        assert not rig.loop.line()


async def test_a_drain_resumes_nobody_who_waits_to_go_on(tmp_path: Path) -> None:
    await left_behind(tmp_path, chat="a")
    await left_behind(tmp_path, chat="b")
    go = anyio.Event()
    model = ScriptedModel([held("resumed", go)])
    async with running(tmp_path, model) as rig:
        await model.wait_asked(1)
        rig.loop.begin_drain()
        go.set()
        await rig.loop.drained()
        await anyio.sleep(0.3)
        assert len(model.requests) == 1
        [left] = await rig.store.running_turns()
        assert (left.id, left.attempt) == ("turn-b", 1)


class _Failing:
    """Makes one operation of the store fail as a full disk does, until it is mended."""

    def __init__(self, rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(rig.store, name)
        self.mended = False
        self.refused = anyio.Event()

        async def operation(*args: object, **kwargs: object) -> object:
            if not self.mended:
                self.refused.set()
                raise StoreUnavailable("the disk is full")
            return await real(*args, **kwargs)

        monkeypatch.setattr(rig.store, name, operation)


async def test_a_turn_that_cannot_be_closed_is_closed_when_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel(["never kept", "next"])
    async with running(tmp_path, model, cap=1) as rig:
        answers = _Failing(rig, "close_or_fold", monkeypatch)
        closes = _Failing(rig, "close", monkeypatch)
        first = await rig.say("one")
        await closes.refused.wait()
        assert rig.gate.held == 0
        assert [str(turn.key) for turn in rig.loop.live()] == ["api:c"], "it is shown"
        answers.mended = closes.mended = True
        assert (await rig.reply_to(first)).message_ids == (first.id,)
        assert (await rig.reply_to(await rig.say("two"))).content == "next"


async def test_a_stop_that_cannot_be_kept_stops_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Blocking()
    async with running(tmp_path, ScriptedModel([call()]), tools=[tool]) as rig:
        first = await rig.say("work")
        await tool.entered.wait()
        _Failing(rig, "command", monkeypatch)
        with pytest.raises(StoreUnavailable):
            await rig.loop.stop(SessionKey.parse("c"))
        assert (await rig.reply_to(first)).content == "Stopped."
        await rig.quiet()
        assert tool.ended == 1


@pytest.mark.parametrize("ending", ["stop", "timeout", "shutdown"])
async def test_the_request_that_an_ending_gives_up_is_booked_once(
    tmp_path: Path, ending: str
) -> None:
    tool = Blocking()
    tool.let_go.set()
    model = ScriptedModel([call(), held("never", anyio.Event())])
    limit_s = 0.5 if ending == "timeout" else 60.0
    async with running(tmp_path, model, tools=[tool], turn_timeout_s=limit_s) as rig:
        await rig.say("work")
        await model.wait_asked(2)
        [turn] = rig.loop.live()
        if ending == "stop":
            await rig.say("/stop")
        if ending != "shutdown":
            await rig.quiet()
    store = await Store.open(tmp_path / "state.db", clock=SystemClock())
    try:
        record = await store.turn(turn.id)
        assert record is not None
        assert (record.requests, record.parked) == (2, ending == "shutdown")
        assert record.estimated, "nobody told what it came to that was given up"
        assert record.usage.output_tokens is not None
        assert record.cost is None, "nobody knows the prices of this model"
    finally:
        await store.aclose()


async def test_the_requests_of_an_answer_that_came_after_the_stop_are_booked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence refuses the answer and books it."""
    model = ScriptedModel(["too late"])
    async with running(tmp_path, model) as rig:
        real = rig.store.close_or_fold

        async def late(*args: Any, **kwargs: Any) -> object:
            closed = await rig.store.close(args[0], text="Stopped.", outcome="stopped", attempts=())
            rig.dispatcher.announce(closed.outbound)
            return await real(*args, **kwargs)

        monkeypatch.setattr(rig.store, "close_or_fold", late)
        reply = await rig.reply_to(await rig.say("work"))
        await rig.quiet()
        record = await rig.store.turn(reply.turn_id or "")
        assert record is not None
        assert (record.outcome, record.requests) == ("stopped", 1)


async def test_a_subscriber_that_does_not_read_holds_little_text() -> None:
    feed = ActivityFeed(clock=SystemClock())
    async with feed.subscribe() as subscription:
        for number in range(10):
            message = OutboundMessage(
                id=number,
                address=Address(channel="api", chat_id="c"),
                session_key=SessionKey.parse("c"),
                turn_id=None,
                kind="final",
                message_ids=(),
                content="x" * 1_000_000,
                created_at=0,
            )
            feed.publish(Reply(message=message))
        assert subscription.dropped == 6
        newest = [await anext(subscription) for _ in range(4)]
        assert [event.message.id for event in newest if isinstance(event, Reply)] == [6, 7, 8, 9]


async def test_a_call_that_was_given_up_while_the_disk_failed_frees_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = held("never", anyio.Event())
    async with running(tmp_path, ScriptedModel([never, "next"])) as rig:
        closes = _Failing(rig, "close", monkeypatch)
        async with anyio.create_task_group() as callers:
            callers.start_soon(rig.loop.process_direct, "work", "api:c")
            while not await rig.store.running_turns():
                await anyio.sleep(0.01)
            callers.cancel_scope.cancel()
        assert closes.refused.is_set()
        assert [one.origin for one in await rig.store.running_turns()] == ["direct"]
        closes.mended = True
        with anyio.fail_after(20):
            while await rig.store.running_turns():
                await anyio.sleep(0.01)
        assert (await rig.reply_to(await rig.say("and now?"))).content == "next"


@pytest.mark.parametrize("operation", ["running_turns", "pending_keys", "resume"])
async def test_a_disk_that_fails_at_the_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(loop_module, "_RETRY_CEILING_S", 0.05)
    first = await left_behind(tmp_path)
    async with running(tmp_path, ScriptedModel(["taken up", "next"]), serve=False) as rig:
        disk = _Failing(rig, operation, monkeypatch)
        rig.tasks.start_soon(rig.loop.run)
        await disk.refused.wait()
        disk.mended = True
        assert (await rig.reply_to(first)).content == "taken up"
        assert (await rig.reply_to(await rig.say("more"))).content == "next"


async def test_what_was_left_over_is_taken_up_before_a_call_has_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_RETRY_CEILING_S", 0.05)
    first = await left_behind(tmp_path)
    model = ScriptedModel(["taken up", "direct"])
    async with running(tmp_path, model, serve=False) as rig:
        disk = _Failing(rig, "running_turns", monkeypatch)
        rig.tasks.start_soon(rig.loop.run)
        await disk.refused.wait()
        async with anyio.create_task_group() as callers:
            callers.start_soon(rig.loop.process_direct, "given up", "api:c")
            await anyio.sleep(0.05)
            callers.cancel_scope.cancel()
        assert not model.requests
        rig.tasks.start_soon(rig.loop.process_direct, "quick", "api:c")
        await anyio.sleep(0.05)
        disk.mended = True
        assert (await rig.reply_to(first)).content == "taken up"
        await model.wait_asked(2)


async def test_a_call_that_comes_before_what_was_left_is_taken_up_stays_alone(
    tmp_path: Path,
) -> None:
    first = await left_behind(tmp_path)
    go_on = anyio.Event()
    model = ScriptedModel([held("direct", go_on), "later"])
    async with running(tmp_path, model, serve=False) as rig:
        rig.tasks.start_soon(rig.loop.process_direct, "quick", "api:c")
        await model.wait_asked(1)
        rig.tasks.start_soon(rig.loop.run)
        last = await rig.say("more")
        await anyio.sleep(0.1)
        assert len(rig.loop.live()) == 1
        go_on.set()
        assert (await rig.reply_to(last)).content == "later"
        assert "interrupted" in (await rig.reply_to(first)).content


async def test_a_turn_that_is_over_holds_nothing_of_what_was_said(tmp_path: Path) -> None:
    """Its deadline's timer, though cancelled, holds the turn for up to half an hour."""
    said = "x" * 100_000
    async with running(tmp_path, ScriptedModel(default="fine"), turn_timeout_s=1800) as rig:
        for number in range(20):
            await rig.reply_to(await rig.say(f"{number} {said}", f"chat-{number}"))
        await rig.quiet()
        gc.collect()
        turns = [one for one in gc.get_objects() if isinstance(one, Turn)]
        assert turns
        assert not any(turn._begun or turn._exchange or turn._end for turn in turns)
