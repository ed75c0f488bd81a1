"""Histories that a turn need not read again, and that it never gets wrong."""

from __future__ import annotations

import random
from pathlib import Path

import anyio.to_thread
import pytest

from teaagentd.store import Store, sessions, transcripts
from teaagentd.store.recent import RecentHistories
from teaagentd.store.values import Begun
from teaagentd.types import LLMMessage, SessionKey
from tests.store.steps import (
    KEY,
    ManualClock,
    begin,
    close_or_fold,
    command,
    database,
    decide,
    new_turn,
    result,
    started,
)

pytestmark = pytest.mark.anyio


async def in_the_file(path: Path, key: SessionKey = KEY) -> tuple[LLMMessage, ...]:
    """The live history as one who knows nothing of it reads it."""

    def read() -> tuple[LLMMessage, ...]:
        with database(path) as other:
            session = sessions.find(other, key)
            assert session is not None
            return transcripts.history(other, session)

    return await anyio.to_thread.run_sync(read)


async def test_what_a_turn_has_read_the_next_does_not_read_again(store: Store, path: Path) -> None:
    turn = await started(store, "one")
    await close_or_fold(store, turn.turn_id, "two")
    with database(path) as other:
        other.execute("UPDATE messages SET content = 'changed'")
    turn = await started(store, "three")
    assert [message.content for message in turn.history] == ["one", "changed", "three"]


@pytest.mark.parametrize("seed", range(20))
async def test_a_history_is_always_what_is_in_the_file(store: Store, path: Path, seed: int) -> None:
    """Whatever came between two turns: rounds whose calls end in any order, stops, a new
    conversation, a turn left over, ephemeral turns, other sessions."""
    chance = random.Random(seed)
    other = SessionKey(channel="api", chat_id="other")
    for number in range(25):
        key = chance.choice((KEY, KEY, KEY, other))
        if chance.random() < 0.2:
            turn = await begin(store, new_turn(key, "direct", opening=f"d{number}"))
        elif chance.random() < 0.1:
            await begin(store, new_turn(key, "ephemeral", opening="unseen"))
            continue
        else:
            turn = await started(store, f"m{number}", key=key)
        assert turn.history == await in_the_file(path, key)
        await _live(store, turn, chance)


async def _live(store: Store, turn: Begun, chance: random.Random) -> None:
    if chance.random() < 0.5:
        ids = ["a", "b", "c"]
        await decide(store, turn.turn_id, *ids)
        for call in chance.sample(ids, chance.randint(0, 3)):
            await store.start_call(turn.turn_id, call)
            await store.finish_call(turn.turn_id, result(call))
    ending = chance.random()
    if ending < 0.5:
        await close_or_fold(store, turn.turn_id, "answer")
    elif ending < 0.7:
        await command(store, chance.choice(("stop", "new")), key=turn.key)
    elif ending < 0.8:
        await store.resume(turn.turn_id, notice=None, failed="f")
        await close_or_fold(store, turn.turn_id, "resumed")


async def test_messages_that_are_gone_are_never_remembered(
    store: Store, path: Path, clock: ManualClock
) -> None:
    """Not even when as many others have their places and their ids."""
    turn = await started(store, "secret")
    await close_or_fold(store, turn.turn_id, "told")
    before = await started(store, "more")
    with database(path) as other:
        other.execute("PRAGMA foreign_keys = OFF")
        for table in ("calls", "messages", "outbox", "inbox", "turns"):
            other.execute(f"DELETE FROM {table}")
    elsewhere = await Store.open(path, clock=clock)
    turn = await started(elsewhere, "hello")
    await close_or_fold(elsewhere, turn.turn_id, "hi")
    after = await started(elsewhere, "again")
    await close_or_fold(elsewhere, after.turn_id, "hi again")
    await elsewhere.aclose()
    assert [one.id for one in after.history] == [one.id for one in before.history]
    turn = await started(store, "and now?")
    contents = [message.content for message in turn.history]
    assert contents == ["hello", "hi", "again", "hi again", "and now?"]


def begun(chat: str, *contents: str, origin: str = "bus") -> Begun:
    return Begun(
        turn_id=f"turn-{chat}",
        key=SessionKey(channel="api", chat_id=chat),
        origin=origin,  # type: ignore[arg-type]  # one of those
        generation=1,
        attempt=1,
        history=tuple(LLMMessage(role="user", content=content) for content in contents),
        claimed=(),
    )


def kept(recent: RecentHistories, *chats: str) -> list[str]:
    return [chat for chat in chats if recent.get(SessionKey(channel="api", chat_id=chat))]


async def test_the_oldest_are_dropped_for_the_newest() -> None:
    recent = RecentHistories(limit_characters=1000)
    for chat in ("a", "b", "a", "c"):
        recent.keep(begun(chat, "x" * 100))
    assert kept(recent, "a", "b", "c") == ["a", "c"]
    recent.keep(begun("d", "x" * 600))
    assert kept(recent, "a", "c", "d") == ["d"]


async def test_one_that_is_too_large_or_leaves_no_trace_is_not_kept() -> None:
    recent = RecentHistories(limit_characters=1000)
    recent.keep(begun("a", "x"))
    recent.keep(begun("a", "x" * 1000))
    recent.keep(begun("b", "x", origin="ephemeral"))
    assert kept(recent, "a", "b") == []
    recent.keep(begun("c", "x" * 699))
    assert kept(recent, "c") == ["c"]
