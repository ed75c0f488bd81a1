"""Dispatcher: every committed text arrives, once, in order, whatever the channels do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from teaagentd.abc import Channel, Clock, Inbox, SystemClock
from teaagentd.channels.delivery import REPEAT_MARK, DeliveryLimits
from teaagentd.channels.supervisor import RestartLimits
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.errors import (
    ConfigError,
    DeliveryDelayed,
    DeliveryRefused,
    DeliveryUnknown,
    StoreUnavailable,
)
from teaagentd.store import Store
from teaagentd.store.values import Closed, Letter, NewTurn
from teaagentd.testing import FakeClock, MemoryChannel
from teaagentd.types import (
    Attachment,
    InboundMessage,
    LLMMessage,
    OutboundMessage,
    Part,
    Receipt,
    Reply,
    SessionKey,
)

pytestmark = pytest.mark.anyio

QUICK = DeliveryLimits(backoff_s=0.01, longest_backoff_s=0.02, send_s=5.0)
QUICK_RESTARTS = RestartLimits(first_wait_s=0.01, longest_wait_s=0.04)


Logs = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with capture_logs() as entries:
        yield entries


class StoreInbox:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def publish(self, message: InboundMessage) -> object:
        return await self._store.accept(message)

    async def keep(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        raise AssertionError("no file comes with a message here")


@dataclass(kw_only=True)
class Post:
    """A store and a dispatcher that runs over it."""

    store: Store
    dispatcher: Dispatcher
    feed: ActivityFeed
    tasks: TaskGroup

    async def commit(self, *texts: str, chat: str = "a", channel: str = "memory") -> list[int]:
        """Let a turn answer in `chat` once for each text, without telling the dispatcher."""
        return [reply.id for text in texts for reply in await self._answer(text, chat, channel)]

    async def reply(self, *texts: str, chat: str = "a", channel: str = "memory") -> None:
        for text in texts:
            self.dispatcher.announce(await self._answer(text, chat, channel))

    async def _answer(self, text: str, chat: str, channel: str) -> Sequence[OutboundMessage]:
        message = InboundMessage(channel=channel, chat_id=chat, content="ask")
        await self.store.accept(message)
        turn = NewTurn(id=uuid4().hex, key=message.key, origin="bus")
        await self.store.begin(turn, upto=None, budget_tokens=None, note=lambda row: None)
        closed = await self.store.close_or_fold(
            turn.id,
            LLMMessage(role="assistant", content=text),
            attempts=(),
            may_fold=False,
            upto=None,
            budget_tokens=None,
            note=lambda row: None,
        )
        assert isinstance(closed, Closed)
        return closed.outbound

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not holds():
                await anyio.sleep(0.005)

    async def empty(self) -> None:
        """Until the outbox holds nothing that is to be sent."""
        with anyio.fail_after(20):
            while (await self.store.depths()).outbox:
                await anyio.sleep(0.005)

    async def settled(self) -> None:
        """Until nothing is being sent, nor could be."""
        states = self.dispatcher.channel_status
        await self.until(lambda: all(status.state != "stopped" for status in states()))
        await self.until(lambda: not self.dispatcher.waiting_for())

    async def dead(self) -> int:
        return (await self.store.depths()).dead_letters


@asynccontextmanager
async def posting(
    folder: Path,
    *channels: Channel,
    clock: Clock | None = None,
    limits: DeliveryLimits = QUICK,
    restarts: RestartLimits = QUICK_RESTARTS,
) -> AsyncIterator[Post]:
    """Leaving it cuts off what is being sent, as a kill would."""
    clock = clock or SystemClock()
    store = await Store.open(folder / "state.db", clock=clock)
    try:
        async with anyio.create_task_group() as tasks:
            feed = ActivityFeed(clock=clock)
            dispatcher = Dispatcher(
                store=store,
                channels={channel.name: channel for channel in channels},
                inbox=StoreInbox(store),
                clock=clock,
                feed=feed,
                limits=limits,
                restarts=restarts,
            )
            tasks.start_soon(dispatcher.run)
            yield Post(store=store, dispatcher=dispatcher, feed=feed, tasks=tasks)
            tasks.cancel_scope.cancel()
    finally:
        await store.aclose()


def contents(parts: Sequence[Part]) -> list[str]:
    return [part.content for part in parts]


def in_chat(parts: Sequence[Part], chat: str) -> list[str]:
    return [part.content for part in parts if part.address.chat_id == chat]


# -- in order, in parts -----------------------------------------------------------------


async def test_texts_of_a_chat_arrive_in_order_and_other_chats_beside_it(tmp_path: Path) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        await post.reply("one", "two", "three")
        await post.reply("other", chat="b")
        with anyio.fail_after(20):
            arrived = await channel.wait_arrived(4)
        assert in_chat(arrived, "a") == ["one", "two", "three"]
        assert in_chat(arrived, "b") == ["other"]
        await post.empty()
        assert await post.dead() == 0


async def test_what_was_committed_before_the_start_is_sent_without_a_word(tmp_path: Path) -> None:
    async with posting(tmp_path, MemoryChannel("elsewhere")) as post:
        pass
    store = await Store.open(tmp_path / "state.db", clock=SystemClock())
    await Post(store=store, dispatcher=post.dispatcher, feed=post.feed, tasks=post.tasks).commit(
        "one", "two"
    )
    await store.aclose()
    channel = MemoryChannel()
    async with posting(tmp_path, channel):
        with anyio.fail_after(20):
            assert contents(await channel.wait_arrived(2)) == ["one", "two"]


async def test_only_one_part_of_a_chat_is_in_flight_and_chats_are_bounded(tmp_path: Path) -> None:
    channel = MemoryChannel()
    channel.hold = anyio.Event()
    async with posting(tmp_path, channel, limits=DeliveryLimits(chats=3)) as post:
        for chat in "abcde":
            await post.reply("one", "two", chat=chat)
        await post.until(lambda: len(channel.sent) == 3)
        await anyio.wait_all_tasks_blocked()
        assert len(channel.sent) == len({part.address.chat_id for part in channel.sent}) == 3
        channel.hold.set()
        with anyio.fail_after(20):
            arrived = await channel.wait_arrived(10)
        for chat in "abcde":
            assert in_chat(arrived, chat) == ["one", "two"]


async def test_a_long_text_is_cut_into_parts_that_the_channel_can_carry(tmp_path: Path) -> None:
    channel = MemoryChannel(limit=100)
    text = " ".join(f"word{number}" for number in range(60))
    async with posting(tmp_path, channel) as post:
        await post.reply(text, "next")
        with anyio.fail_after(20):
            await post.until(lambda: contents(channel.arrived)[-1:] == ["next"])
        parts = contents(channel.arrived)[:-1]
        assert "".join(parts) == text
        assert max(len(part) for part in parts) <= 100


async def test_a_blank_tail_is_not_sent(tmp_path: Path) -> None:
    channel = MemoryChannel(limit=10, idempotent=True)
    async with posting(tmp_path, channel) as post:
        await post.reply("x" * 10 + "\n" * 12)
        await post.empty()
        assert contents(channel.arrived) == ["x" * 10]
        assert await post.dead() == 0


# -- killed between "sent" and "recorded" (L15) -------------------------------------------
# openclaw/openclaw#29106, #124517, #88016, #23777


async def start_and_kill(folder: Path, channel: MemoryChannel, sends: int) -> None:
    """Start, and kill the sender while it waits for the answer to the last of `sends`."""
    channel.hold = anyio.Event()
    async with posting(folder, channel) as post:
        await post.until(lambda: len(channel.sent) == sends)
    channel.hold = None


async def test_an_unknown_outcome_is_repeated_once_ever_and_marked(tmp_path: Path) -> None:
    channel = MemoryChannel()
    channel.hold = anyio.Event()
    async with posting(tmp_path, channel) as post:
        await post.reply("answer")
        await post.until(lambda: len(channel.sent) == 1)
    await start_and_kill(tmp_path, channel, 2)
    for _ in range(2):
        async with posting(tmp_path, channel) as post:
            await post.reply("next")
            await post.until(lambda: contents(channel.arrived)[-1:] == ["next"])
            await post.empty()
            assert await post.dead() == 1
            channel.arrived.clear()
    first, second = channel.sent[:2]
    assert (first.content, first.possible_repeat) == ("answer", False)
    assert (second.content, second.possible_repeat) == (REPEAT_MARK + "answer", True)
    assert contents(channel.sent[2:]) == ["next", "next"]


async def test_a_text_of_four_parts_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    channel = MemoryChannel(limit=100)
    pieces = [letter * 82 for letter in "abcd"]
    held = channel.hold = anyio.Event()
    async with posting(tmp_path, channel) as post:
        await post.reply("".join(pieces))
        await post.until(lambda: len(channel.sent) == 1)
        held.set()
        channel.hold = anyio.Event()
        await post.until(lambda: len(channel.sent) == 2)
    channel.hold.set()
    channel.limit = 1000
    async with posting(tmp_path, channel) as post:
        await post.empty()
        assert await post.dead() == 0
    assert contents(channel.sent) == [
        pieces[0],
        pieces[1],
        REPEAT_MARK + pieces[1],
        pieces[2],
        pieces[3],
    ]
    assert max(len(part.content) for part in channel.sent) <= 100


async def test_a_permanent_refusal_is_tried_once_and_set_aside_in_sight(
    tmp_path: Path, logs: Logs
) -> None:
    channel = MemoryChannel(failures=[DeliveryRefused("chat not found")])
    async with posting(tmp_path, channel) as post:
        await post.reply("lost", "kept")
        await post.empty()
        assert await post.dead() == 1
    async with posting(tmp_path, channel) as post:
        await post.empty()
    assert contents(channel.sent) == ["lost", "kept"]
    assert contents(channel.arrived) == ["kept"]
    dead = [log for log in logs if log["event"] == "letter_dead"]
    assert len(dead) == 1
    assert "chat not found" in dead[0]["reason"]
    assert dead[0]["log_level"] == "error"


async def test_a_channel_that_can_deduplicate_gets_the_same_key_again(tmp_path: Path) -> None:
    channel = MemoryChannel(idempotent=True)
    channel.hold = anyio.Event()
    async with posting(tmp_path, channel) as post:
        await post.reply("answer")
        await post.until(lambda: len(channel.sent) == 1)
    for sends in (2, 3):
        await start_and_kill(tmp_path, channel, sends)
    async with posting(tmp_path, channel) as post:
        await post.empty()
        assert await post.dead() == 0
    assert contents(channel.sent) == ["answer"] * 4
    assert len({part.idempotency_key for part in channel.sent}) == 1
    assert contents(channel.arrived) == ["answer"]


async def test_different_parts_have_different_keys(tmp_path: Path) -> None:
    channel = MemoryChannel(limit=4, idempotent=True)
    async with posting(tmp_path, channel) as post:
        await post.reply("abcdefgh", "abcdefgh"[:4])
        await post.reply("abcd", chat="b")
        await post.empty()
    assert len({part.idempotency_key for part in channel.sent}) == len(channel.sent) == 4


async def test_an_outcome_that_stays_unknown_ends_for_deduplicating_channels_too(
    tmp_path: Path,
) -> None:
    failures = [DeliveryUnknown("broken pipe")] * 3
    channel = MemoryChannel(idempotent=True, failures=failures)
    limits = DeliveryLimits(backoff_s=0.01, longest_backoff_s=0.02, unknown_outcomes=3)
    async with posting(tmp_path, channel, limits=limits) as post:
        await post.reply("lost", "kept")
        await post.empty()
        assert await post.dead() == 1
    assert contents(channel.sent) == ["lost"] * 3 + ["kept"]


async def test_a_receipt_that_the_disk_refuses_leads_to_no_second_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        real = post.store.finish_part
        refusals = [StoreUnavailable("disk full")] * 2

        async def failing(outbound_id: int, index: int, receipt: Receipt) -> None:
            if refusals:
                raise refusals.pop()
            await real(outbound_id, index, receipt)

        monkeypatch.setattr(post.store, "finish_part", failing)
        await post.reply("one", "two")
        await post.empty()
    assert contents(channel.sent) == ["one", "two"]


async def test_a_shutdown_between_answer_and_record_still_records(tmp_path: Path) -> None:
    class LastWord(MemoryChannel):
        async def send(self, part: Part) -> Receipt:
            receipt = await super().send(part)
            post.tasks.cancel_scope.cancel()
            return receipt

    channel = LastWord()
    async with posting(tmp_path, channel) as post:
        await post.reply("one")
        await anyio.sleep(20)
    again = MemoryChannel()
    async with posting(tmp_path, again) as post:
        await post.empty()
    assert contents(channel.sent) == ["one"]
    assert again.sent == []


async def test_a_shutdown_in_mid_send_is_no_error_of_the_channel(
    tmp_path: Path, logs: Logs
) -> None:
    channel = MemoryChannel()
    channel.hold = anyio.Event()
    async with posting(tmp_path, channel) as post:
        await post.reply("answer")
        await post.until(lambda: len(channel.sent) == 1)
    assert logs == []


# -- refused in the middle (C04) --------------------------------------------------------
# NousResearch/hermes-agent#114877, #44468, openclaw/openclaw#33226


async def test_five_parts_with_every_kind_of_trouble_at_the_third(tmp_path: Path) -> None:
    clock = FakeClock()
    pieces = [letter * 82 for letter in "12345"]
    channel = MemoryChannel(
        limit=100,
        failures=[
            None,
            None,
            DeliveryDelayed("slow down", wait_s=0.3),
            None,
            DeliveryDelayed("slow down", wait_s=3600),
            DeliveryUnknown("no answer"),
        ],
    )
    async with posting(tmp_path, channel, clock=clock, limits=DeliveryLimits()) as post:
        await post.reply("".join(pieces))
        await post.until(lambda: len(channel.sent) == 3)
        await post.reply("second")
        await post.reply("other", chat="b")
        await post.until(lambda: in_chat(channel.arrived, "b") == ["other"])
        await post.settled()
        for wait_s, sends in ((0.3, 5), (3600, 6), (4, 10)):
            clock.advance(wait_s * 0.9)
            post.dispatcher.kick("memory")
            await post.settled()
            before = len(channel.sent)
            clock.advance(wait_s * 0.11)
            post.dispatcher.kick("memory")
            await post.settled()
            assert before < sends == len(channel.sent)
        await post.empty()
        assert await post.dead() == 0
    assert in_chat(channel.sent, "a") == [
        pieces[0],
        pieces[1],
        pieces[2],
        pieces[2],
        pieces[2],
        REPEAT_MARK + pieces[2],
        pieces[3],
        pieces[4],
        "second",
    ]


async def test_a_wait_that_was_asked_for_outlasts_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    channel = MemoryChannel(failures=[DeliveryDelayed("slow down", wait_s=600)])
    async with posting(tmp_path, channel, clock=clock) as post:
        await post.reply("answer")
        await post.until(lambda: len(channel.sent) == 1)
        await post.settled()
    clock.advance(500)
    async with posting(tmp_path, channel, clock=clock) as post:
        await post.reply("other", chat="b")
        await post.until(lambda: in_chat(channel.arrived, "b") == ["other"])
        assert in_chat(channel.sent, "a") == ["answer"]
        clock.advance(101)
        post.dispatcher.kick("memory")
        await post.empty()
    assert in_chat(channel.arrived, "a") == ["answer"]


async def test_a_wall_clock_that_jumped_back_does_not_lengthen_a_wait(tmp_path: Path) -> None:
    clock = FakeClock()
    channel = MemoryChannel(failures=[DeliveryDelayed("slow down", wait_s=60)])
    async with posting(tmp_path, channel, clock=clock) as post:
        await post.reply("answer")
        await post.until(lambda: len(channel.sent) == 1)
        await post.settled()
        clock.jump(-86_400)
        clock.advance(61)
        post.dispatcher.kick("memory")
        await post.empty()
    assert contents(channel.arrived) == ["answer"]


async def test_a_wait_without_end_is_recorded_as_a_dead_letter(tmp_path: Path, logs: Logs) -> None:
    channel = MemoryChannel(
        limit=100, failures=[None, DeliveryDelayed("come back tomorrow", wait_s=86_400)]
    )
    async with posting(tmp_path, channel) as post:
        await post.reply("x" * 200, "next")
        await post.empty()
        assert await post.dead() == 1
    assert contents(channel.arrived) == ["x" * 82, "next"]
    [dead] = [log for log in logs if log["event"] == "letter_dead"]
    assert "86400 s" in dead["reason"]


@pytest.mark.parametrize("wait_s", [None, -5.0, float("nan"), float("inf")])
async def test_a_refusal_without_a_usable_wait_is_tried_again_by_backoff(
    tmp_path: Path, wait_s: float | None
) -> None:
    channel = MemoryChannel(failures=[DeliveryDelayed("not now", wait_s=wait_s)] * 3)
    async with posting(tmp_path, channel) as post:
        await post.reply("answer")
        await post.empty()
        assert await post.dead() == 0
    assert contents(channel.sent) == ["answer"] * 4


async def test_when_a_second_chat_is_told_to_wait_the_whole_channel_does(tmp_path: Path) -> None:
    clock = FakeClock()
    channel = MemoryChannel(failures=[DeliveryDelayed("slow down", wait_s=30)] * 2)
    async with posting(tmp_path, channel, clock=clock) as post:
        await post.reply("one", chat="a")
        await post.until(lambda: len(channel.sent) == 1)
        await post.settled()
        await post.reply("two", chat="b")
        await post.until(lambda: len(channel.sent) == 2)
        await post.until(lambda: post.dispatcher.channel_status()[0].paused_s > 0)
        for chat in "cdef":
            await post.reply("more", chat=chat)
        await post.settled()
        assert len(channel.sent) == 2
        channel.hold = anyio.Event()
        clock.advance(31)
        post.dispatcher.kick("memory")
        await post.until(lambda: len(channel.sent) == 3)
        await anyio.wait_all_tasks_blocked()
        assert len(channel.sent) == 3
        channel.hold.set()
        await post.empty()
    assert {part.address.chat_id for part in channel.arrived} == set("abcdef")
    assert len(channel.arrived) == 6


async def test_a_chat_that_was_refused_lets_the_others_go_first(tmp_path: Path) -> None:
    clock = FakeClock()
    channel = MemoryChannel(failures=[DeliveryDelayed("slow down", wait_s=5)])
    async with posting(tmp_path, channel, clock=clock, limits=DeliveryLimits(chats=1)) as post:
        await post.reply("refused", chat="a")
        await post.until(lambda: len(channel.sent) == 1)
        await post.settled()
        hold = channel.hold = anyio.Event()
        await post.reply("held", chat="b")
        await post.until(lambda: len(channel.sent) == 2)
        await post.reply("waiting", chat="c")
        clock.advance(6)
        hold.set()
        await post.empty()
    assert contents(channel.arrived) == ["held", "waiting", "refused"]


async def test_a_wait_on_one_channel_holds_up_no_other(tmp_path: Path) -> None:
    refusing = MemoryChannel("refusing", failures=[DeliveryDelayed("slow down", wait_s=3000)] * 9)
    good = MemoryChannel("good")
    async with posting(tmp_path, refusing, good) as post:
        for chat in "abc":
            await post.reply("late", chat=chat, channel="refusing")
            await post.reply("now", chat=chat, channel="good")
        with anyio.fail_after(20):
            await good.wait_arrived(3)


# -- one bad message silences nothing (C11) -----------------------------------------------
# HKUDS/nanobot#5457, HKUDS/nanobot#2221


class Abort(BaseException):
    pass


class RaisingChannel(MemoryChannel):
    """Raises what is no `Exception` too."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("raising")
        self.error: BaseException | None = error

    async def send(self, part: Part) -> Receipt:
        if self.error is not None:
            error, self.error = self.error, None
            self.sent.append(part)
            raise error
        return await super().send(part)


@pytest.mark.parametrize(
    "error",
    [ValueError("bug"), asyncio.CancelledError(), SystemExit(3), Abort(), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_an_adapter_raises_delivery_goes_on(
    tmp_path: Path, error: BaseException
) -> None:
    raising = RaisingChannel(error)
    good = MemoryChannel("good")
    async with posting(tmp_path, raising, good) as post:
        await post.reply("one", "two", channel="raising")
        await post.reply("fine", channel="good")
        await post.empty()
        assert await post.dead() == 0
    assert contents(raising.sent) == ["one", REPEAT_MARK + "one", "two"]
    assert contents(good.arrived) == ["fine"]


async def test_a_send_that_blocks_ends_at_its_deadline_and_delays_no_one(tmp_path: Path) -> None:
    blocking = MemoryChannel("blocking")
    blocking.hold = anyio.Event()
    good = MemoryChannel("good")
    limits = DeliveryLimits(send_s=0.05, backoff_s=0.01)
    async with posting(tmp_path, blocking, good, limits=limits) as post:
        await post.reply("stuck", "next", channel="blocking")
        await post.reply("fine", channel="good")
        with anyio.fail_after(20):
            await good.wait_arrived(1)
            await blocking.wait_sent(2)
        blocking.hold.set()
        await post.empty()
    assert contents(blocking.arrived)[-1] == "next"


@pytest.mark.parametrize("text", ["\n \n", "x" * 5_000_000], ids=["blank", "5 MB"])
async def test_a_text_that_cannot_be_sent_is_set_aside(
    tmp_path: Path, logs: Logs, text: str
) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        await post.reply(text, "next")
        await post.until(lambda: contents(channel.arrived) == ["next"])
        assert await post.dead() == 1
    assert [log["event"] for log in logs] == ["letter_dead"]


async def test_a_text_for_an_unknown_channel_is_set_aside_with_a_log_line(
    tmp_path: Path, logs: Logs
) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        await post.reply("lost", channel="nowhere")
        await post.reply("kept")
        await post.empty()
        assert await post.dead() == 1
    assert contents(channel.arrived) == ["kept"]
    assert [(log["event"], log["channel"]) for log in logs] == [("letter_dead", "nowhere")]


async def test_a_channel_taken_out_of_the_configuration_leaves_nothing_hanging(
    tmp_path: Path,
) -> None:
    channel = MemoryChannel("old", failures=[DeliveryDelayed("slow down", wait_s=3000)])
    async with posting(tmp_path, channel) as post:
        await post.reply("late", channel="old")
        await post.until(lambda: len(channel.sent) == 1)
    async with posting(tmp_path) as post:
        await post.empty()
        assert await post.dead() == 1


async def test_texts_of_pull_channels_are_left_to_their_readers(tmp_path: Path, logs: Logs) -> None:
    async with posting(tmp_path) as post:
        await post.reply("answer", channel="api")
        await anyio.wait_all_tasks_blocked()
        found = await post.dispatcher.replies(SessionKey(channel="api", chat_id="a"), after=0)
        assert [reply.content for reply in found] == ["answer"]
        assert await post.dead() == 0
    assert logs == []


async def test_a_channel_without_room_for_text_is_a_configuration_error(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await Store.open(tmp_path / "state.db", clock=clock)
    with pytest.raises(ConfigError, match="memory"):
        Dispatcher(
            store=store,
            channels={"memory": MemoryChannel(limit=0)},
            inbox=StoreInbox(store),
            clock=clock,
            feed=ActivityFeed(clock=clock),
        )
    await store.aclose()


# -- supervision (G08) ------------------------------------------------------------------
# zeroclaw-labs/zeroclaw#8633, openclaw/openclaw#78187


class ShortLived(MemoryChannel):
    """Its `run` ends as `lives` say: how many seconds each lasts."""

    def __init__(self, clock: FakeClock, lives: Sequence[float], error: BaseException | None):
        super().__init__()
        self.clock = clock
        self.lives = list(lives)
        self.error = error
        self.started = 0

    async def run(self, inbox: Inbox) -> None:
        self.started += 1
        if not self.lives:
            await super().run(inbox)
        self.clock.advance(self.lives.pop(0))
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [None, OSError("gone"), SystemExit(1), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_a_channel_that_ends_is_started_again_ever_more_slowly(
    tmp_path: Path, logs: Logs, error: BaseException | None
) -> None:
    clock = FakeClock()
    channel = ShortLived(clock, [0, 0, 0, 700, 0], error)
    good = MemoryChannel("good")
    async with posting(tmp_path, channel, good, clock=clock) as post:
        await post.until(lambda: channel.started == 6)
        status, other = post.dispatcher.channel_status()
        await post.reply("still works")
        await post.until(lambda: contents(channel.arrived) == ["still works"])
    waits = [log["restart_in_s"] for log in logs if log["event"] == "channel_ended"]
    assert waits == [0.01, 0.02, 0.04, 0.01, 0.02]
    assert (status.state, status.restarts) == ("running", 5)
    assert status.error is not None
    assert (other.name, other.state, other.restarts) == ("good", "running", 0)


async def test_a_channel_that_waits_for_its_restart_is_in_sight(tmp_path: Path) -> None:
    channel = ShortLived(FakeClock(), [0], OSError("gone"))
    async with posting(tmp_path, channel, restarts=RestartLimits(first_wait_s=60)) as post:
        await post.until(lambda: post.dispatcher.channel_status()[0].state == "restarting")
        assert post.dispatcher.channel_status()[0].error == "it raised OSError"


# -- draining (L16) ---------------------------------------------------------------------
# NousResearch/hermes-agent#107638, #82381, #77184


async def test_a_drain_waits_for_what_is_being_sent_and_says_so(tmp_path: Path) -> None:
    channel = MemoryChannel()
    hold = channel.hold = anyio.Event()
    async with posting(tmp_path, channel) as post:
        await post.reply("one", "two")
        await post.until(lambda: len(channel.sent) == 1)
        assert post.dispatcher.waiting_for() == ("replies to 1 chat(s) of memory",)
        assert await post.dispatcher.drain(0.05) == ("replies to 1 chat(s) of memory",)
        left: list[tuple[str, ...]] = []

        async def drain() -> None:
            left.append(await post.dispatcher.drain(20))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            hold.set()
        assert left == [()]
        assert contents(channel.arrived) == ["one", "two"]


async def test_a_drain_includes_what_was_committed_a_moment_ago(tmp_path: Path) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        for chat in "abcdefghijkl":
            await post.reply("answer", chat=chat)
        assert await post.dispatcher.drain(20) == ()
        assert len(channel.arrived) == 12


async def test_a_drain_waits_for_the_outbox_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = MemoryChannel()
    async with posting(tmp_path, channel) as post:
        await post.settled()
        real = post.store.undelivered
        reading = anyio.Event()
        go_on = anyio.Event()

        async def slow(name: str) -> tuple[Letter, ...]:
            reading.set()
            await go_on.wait()
            return await real(name)

        monkeypatch.setattr(post.store, "undelivered", slow)
        await post.reply("answer")
        await reading.wait()
        assert await post.dispatcher.drain(0.02) != ()
        go_on.set()
        assert await post.dispatcher.drain(20) == ()
    assert contents(channel.arrived) == ["answer"]


async def test_a_drain_does_not_wait_out_a_refusal(tmp_path: Path) -> None:
    channel = MemoryChannel(failures=[DeliveryDelayed("slow down", wait_s=3000)])
    async with posting(tmp_path, channel) as post:
        await post.reply("late")
        await post.reply("now", chat="b")
        with anyio.fail_after(20):
            assert await post.dispatcher.drain(1000) == ()
        assert in_chat(channel.arrived, "b") == ["now"]


async def test_a_drain_ends_the_wait_of_those_who_read(tmp_path: Path) -> None:
    async with posting(tmp_path) as post, anyio.create_task_group() as tasks:

        async def read() -> None:
            key = SessionKey(channel="api", chat_id="a")
            assert await post.dispatcher.replies(key, after=0, wait_s=1000) == ()

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            await post.dispatcher.drain(10)


# -- for those who read -----------------------------------------------------------------


async def test_a_reader_wakes_with_the_first_text_of_its_session(tmp_path: Path) -> None:
    found: list[OutboundMessage] = []
    async with posting(tmp_path) as post:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                key = SessionKey(channel="api", chat_id="a")
                found.extend(await post.dispatcher.replies(key, after=0, wait_s=1000))

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            await post.reply("other", channel="api", chat="b")
            await anyio.wait_all_tasks_blocked()
            assert found == []
            with anyio.fail_after(20):
                await post.reply("mine", channel="api", chat="a")
        assert [reply.content for reply in found] == ["mine"]
        key = SessionKey(channel="api", chat_id="a")
        assert await post.dispatcher.replies(key, after=found[0].id, wait_s=0.05) == ()
        assert post.dispatcher._readers == {}


async def test_no_text_falls_between_reading_and_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SessionKey(channel="api", chat_id="a")
    async with posting(tmp_path) as post:
        real = post.store.replies
        reads = 0

        async def committed_meanwhile(
            key: SessionKey, *, after: int, limit: int = 100
        ) -> tuple[OutboundMessage, ...]:
            nonlocal reads
            reads += 1
            found = await real(key, after=after, limit=limit)
            if reads == 1:
                await post.reply("answer", channel="api")
            return found

        monkeypatch.setattr(post.store, "replies", committed_meanwhile)
        with anyio.fail_after(20):
            found = await post.dispatcher.replies(key, after=0, wait_s=1000)
        assert [reply.content for reply in found] == ["answer"]


async def test_replies_are_on_the_feed(tmp_path: Path) -> None:
    async with posting(tmp_path) as post, post.feed.subscribe() as events:
        await post.reply("answer", channel="api")
        event = await anext(events)
        assert isinstance(event, Reply)
        assert event.message.content == "answer"
