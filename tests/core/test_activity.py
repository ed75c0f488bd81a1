"""ActivityFeed: what watchers see, and that they can harm no turn."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from teaagentd.core.activity import ActivityFeed
from teaagentd.testing import FakeClock
from teaagentd.types import (
    Activity,
    Address,
    Delta,
    FeedEvent,
    OutboundMessage,
    Phase,
    Reply,
    Reset,
    SessionKey,
)

pytestmark = pytest.mark.anyio

KEY = SessionKey(channel="api", chat_id="1")
OTHER = SessionKey(channel="api", chat_id="2")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def feed(clock: FakeClock) -> ActivityFeed:
    return ActivityFeed(clock=clock)


def reply(key: SessionKey = KEY) -> Reply:
    message = OutboundMessage(
        id=1,
        address=Address(channel=key.channel, chat_id=key.chat_id),
        session_key=key,
        turn_id="t",
        kind="final",
        message_ids=(1,),
        content="hello",
        created_at=0,
    )
    return Reply(message=message)


async def test_a_subscriber_sees_everything_in_order(feed: ActivityFeed) -> None:
    watcher = feed.watcher(KEY, "t")
    async with feed.subscribe() as events:
        watcher.phase("thinking")
        watcher.delta("he")
        watcher.reset()
        watcher.delta("hello")
        feed.publish(reply())
        watcher.phase("done")
        seen = [await anext(events) for _ in range(6)]
    assert seen == [
        Activity(session_key=KEY, phase=Phase.THINKING, turn_id="t"),
        Delta(session_key=KEY, turn_id="t", text="he"),
        Reset(session_key=KEY, turn_id="t"),
        Delta(session_key=KEY, turn_id="t", text="hello"),
        reply(),
        Activity(session_key=KEY, phase=Phase.DONE, turn_id="t"),
    ]
    assert events.dropped == 0


async def test_a_subscriber_to_one_session_sees_no_other(feed: ActivityFeed) -> None:
    async with feed.subscribe(KEY) as events:
        feed.watcher(OTHER, "o").phase("thinking")
        feed.watcher(OTHER, "o").delta("secret")
        feed.publish(reply(OTHER))
        feed.publish(reply())
        assert await anext(events) == reply()


async def test_a_waiting_subscriber_wakes(feed: ActivityFeed) -> None:
    seen: list[FeedEvent] = []
    ready = anyio.Event()

    async def watch() -> None:
        async with feed.subscribe() as events:
            ready.set()
            async for event in events:
                seen.append(event)
                if len(seen) == 2:
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await ready.wait()
        feed.watcher(KEY, "t").phase("thinking")
        await anyio.wait_all_tasks_blocked()
        feed.watcher(KEY, "t").phase("done")
    assert [event.phase for event in seen if isinstance(event, Activity)] == ["thinking", "done"]


async def test_a_slow_subscriber_loses_the_oldest_and_knows_how_many(feed: ActivityFeed) -> None:
    watcher = feed.watcher(KEY, "t")
    async with feed.subscribe(limit=3) as slow, feed.subscribe() as quick:
        for number in range(10):
            watcher.delta(str(number))
        kept = [await anext(slow) for _ in range(3)]
        assert [event.text for event in kept if isinstance(event, Delta)] == ["7", "8", "9"]
        assert (slow.dropped, quick.dropped) == (7, 0)


async def test_who_has_left_gets_nothing_and_costs_nothing(feed: ActivityFeed) -> None:
    with pytest.raises(LookupError):
        async with feed.subscribe() as events:
            raise LookupError
    feed.watcher(KEY, "t").phase("thinking")
    with pytest.raises(RuntimeError, match="async with"):
        await anext(events)


async def test_the_one_watcher_gets_phases_only_and_is_replaced(feed: ActivityFeed) -> None:
    first: list[Activity] = []
    second: list[Activity] = []
    watcher = feed.watcher(KEY, "t")
    feed.on_activity(first.append)
    watcher.phase("thinking")
    watcher.delta("text")
    feed.on_activity(second.append)
    watcher.phase("tool", "current_time")
    feed.on_activity(None)
    watcher.phase("done")
    assert [activity.phase for activity in first] == ["thinking"]
    assert [(activity.phase, activity.detail) for activity in second] == [("tool", "current_time")]


async def test_a_raising_watcher_is_logged_and_hurts_nobody(feed: ActivityFeed) -> None:
    def broken(activity: Activity) -> None:
        raise RuntimeError("boom")

    feed.on_activity(broken)
    async with feed.subscribe() as events:
        with capture_logs() as logs:
            feed.watcher(KEY, "t").phase("thinking")
        assert isinstance(await anext(events), Activity)
    assert [log["event"] for log in logs] == ["activity_watcher_failed"]


async def test_a_turn_has_exactly_one_done_and_nothing_after_it(feed: ActivityFeed) -> None:
    watcher = feed.watcher(KEY, "t")
    async with feed.subscribe() as events:
        watcher.phase("thinking")
        watcher.phase("done", "answered")
        watcher.phase("done", "stopped")
        watcher.phase("thinking")
        watcher.delta("late")
        watcher.reset()
        feed.watcher(KEY, "t").phase("done")
        feed.publish(reply())
        seen = [await anext(events) for _ in range(3)]
    assert [event.phase for event in seen if isinstance(event, Activity)] == ["thinking", "done"]
    assert seen[-1] == reply()
    assert feed.live() == ()


async def test_a_turn_that_showed_nothing_is_done_too(feed: ActivityFeed) -> None:
    async with feed.subscribe() as events:
        feed.watcher(KEY, "t").phase("done")
        assert await anext(events) == Activity(session_key=KEY, phase=Phase.DONE, turn_id="t")


async def test_live_turns_know_their_phase_and_its_age(
    feed: ActivityFeed, clock: FakeClock
) -> None:
    began = clock.now_ms()
    feed.watcher(KEY, "t").phase("context")
    clock.advance(5)
    feed.watcher(OTHER, "o").phase("waiting", "for a slot")
    feed.watcher(KEY, "t").phase("tool", "current_time")
    first, second = feed.live()
    assert (first.turn_id, first.phase, first.detail) == ("t", "tool", "current_time")
    assert (first.started, first.since) == (began, began + 5000)
    assert (second.session_key, second.phase) == (OTHER, "waiting")
    assert feed.phase_of("t") == first
    feed.watcher(KEY, "t").phase("done")
    assert feed.phase_of("t") is None
    assert [turn.turn_id for turn in feed.live()] == ["o"]


async def test_what_is_remembered_of_ended_turns_is_bounded(feed: ActivityFeed) -> None:
    for number in range(3000):
        feed.watcher(KEY, f"t{number}").phase("thinking")
        feed.watcher(KEY, f"t{number}").phase("done")
    assert feed.live() == ()
    assert len(feed._ended) == 1024
