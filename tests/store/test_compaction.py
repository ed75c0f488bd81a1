"""T8: a summary takes the place of what it tells of, or nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from teaagentd.store import Store
from teaagentd.store.transcripts import SUMMARY_NOTE
from teaagentd.store.values import Compaction, LiveHistory
from tests.store.steps import (
    KEY,
    attempt,
    begin,
    close_or_fold,
    command,
    database,
    decide,
    new_turn,
    result,
    said,
    started,
    told,
)
from tests.store.test_recent import in_the_file

pytestmark = pytest.mark.anyio


async def live(store: Store) -> LiveHistory:
    found = await store.live_history(KEY)
    assert found is not None
    return found


async def told_of(store: Store, count: int, *, turn_id: str | None = None) -> Compaction:
    """A summary of the first `count` messages of the live history."""
    history = await live(store)
    first, last = history.messages[0].id, history.messages[count - 1].id
    assert first is not None
    assert last is not None
    return Compaction(
        key=KEY,
        generation=history.generation,
        first_id=first,
        last_id=last,
        count=count,
        summary="so far",
        turn_id=turn_id,
    )


async def spoken(store: Store) -> None:
    """Two closed turns: one, two; with a round of two calls, three."""
    turn = await started(store, "one")
    await close_or_fold(store, turn.turn_id, "two")
    turn = await started(store, "use it")
    await decide(store, turn.turn_id, "a", "b")
    await store.finish_call(turn.turn_id, result("b"))
    await store.finish_call(turn.turn_id, result("a"))
    await close_or_fold(store, turn.turn_id, "three")


async def test_the_history_begins_with_the_summary_and_the_transcript_keeps_all(
    store: Store, path: Path
) -> None:
    await spoken(store)
    before = await store.transcript(KEY)
    assert await store.compact(await told_of(store, 2), attempts=(attempt(),))
    history = (await live(store)).messages
    assert told(history)[0] == ("user", "so far")
    assert history[0].note == SUMMARY_NOTE
    assert [role for role, _ in told(history)] == [
        "user", "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert await store.transcript(KEY) == before
    following = await started(store, "and now?")
    assert following.history == await in_the_file(path)
    assert following.history[0].content == "so far"
    with database(path) as other:
        assert other.execute("SELECT turn FROM usage").fetchall() == [(None,)]


async def test_all_of_it_can_be_told_and_told_again(store: Store) -> None:
    await spoken(store)
    assert await store.compact(await told_of(store, 7))
    assert told((await live(store)).messages) == [("user", "so far")]
    turn = await started(store, "more")
    await close_or_fold(store, turn.turn_id, "four")
    assert await store.compact(await told_of(store, 2))
    assert [text for _, text in told((await live(store)).messages)] == ["so far", "four"]
    assert len(await store.transcript(KEY)) == 9


async def test_a_summary_of_what_has_changed_its_beginning_is_refused(store: Store) -> None:
    await spoken(store)
    first, second = await told_of(store, 2), await told_of(store, 3)
    assert await store.compact(first)
    assert not await store.compact(first)
    assert not await store.compact(second)
    stale = await told_of(store, 2)
    await command(store, "new")
    assert not await store.compact(stale)
    assert (await live(store)).messages == ()


async def test_only_the_turn_that_is_at_work_may_make_its_history_shorter(store: Store) -> None:
    await spoken(store)
    turn = await started(store, "more")
    assert not await store.compact(await told_of(store, 2))
    assert not await store.compact(await told_of(store, 2, turn_id="another"))
    assert await store.compact(await told_of(store, 7, turn_id=turn.turn_id))
    assert [text for _, text in told((await live(store)).messages)] == ["so far", "more"]
    await store.accept(said("and this"))
    await close_or_fold(store, turn.turn_id, "interim")
    await close_or_fold(store, turn.turn_id, "done")
    direct = await begin(store, new_turn(origin="direct", opening="next"))
    assert [text for _, text in told(direct.history)] == [
        "so far", "more", "interim", "and this", "done", "next",
    ]  # fmt: skip


async def test_without_a_summary_its_requests_are_booked_and_nothing_else(
    store: Store, path: Path
) -> None:
    await spoken(store)
    before = await live(store)
    assert not await store.compact(None, attempts=(attempt(), attempt()))
    assert await live(store) == before
    with database(path) as other:
        assert other.execute("SELECT count(*) FROM usage").fetchone() == (2,)


async def test_a_summary_of_one_message_is_not_overlooked(store: Store, path: Path) -> None:
    """The history is as long as it was, and its end is the same."""
    turn = await started(store, "one")
    await close_or_fold(store, turn.turn_id, "two")
    turn = await started(store, "three")
    assert await store.compact(await told_of(store, 1, turn_id=turn.turn_id))
    await close_or_fold(store, turn.turn_id, "four")
    following = await started(store, "five")
    assert following.history == await in_the_file(path)
    assert following.history[0].content == "so far"
