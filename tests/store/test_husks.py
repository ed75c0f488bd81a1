"""After a deletion life goes on: no id is given twice, no word comes back, no new one is missed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from teaagentd.store import Store
from teaagentd.store.erasure import Target
from teaagentd.store.values import Compaction
from teaagentd.types import Receipt, SessionKey
from tests.store.steps import ManualClock, begin, close_or_fold, new_turn, said
from tests.store.test_admin import EVE, GROUP, answered
from tests.store.test_retention import breathe

pytestmark = pytest.mark.anyio

BOX = SessionKey(channel="box", chat_id="7")


async def ids(store: Store, key: SessionKey) -> list[int]:
    """Of what a turn of this session takes in, leaves in the transcript, and says."""
    accepted = await store.accept(said("it waits", key.chat_id, key.channel, sender_id=EVE))
    turn = await begin(store, new_turn(key))
    await close_or_fold(store, turn.turn_id, "it is answered")
    texts = await store.replies(key, after=0, limit=1000)
    messages = await store.transcript(key)
    return [accepted.id, texts[-1].id, messages[-1].id or 0]


async def summary_of(store: Store, key: SessionKey) -> Compaction:
    """Of the whole live history."""
    live = await store.live_history(key)
    assert live is not None
    first, last = live.messages[0].id, live.messages[-1].id
    assert first is not None
    assert last is not None
    return Compaction(
        key=key,
        generation=live.generation,
        first_id=first,
        last_id=last,
        count=len(live.messages),
        summary="anna and eve spoke",
        turn_id=None,
    )


async def delete(store: Store, clock: ManualClock) -> None:
    await store.admin.delete_session(BOX)


async def erase(store: Store, clock: ManualClock) -> None:
    await store.admin.erase(Target(sender=EVE))


async def sweep(store: Store, clock: ManualClock) -> None:
    clock.ms += 1
    await store.admin.sweep_transcripts(clock.ms, breathe)
    await store.admin.sweep_texts(clock.ms, breathe)


@pytest.mark.parametrize("remove", [delete, erase, sweep])
async def test_no_id_is_given_twice(
    store: Store, clock: ManualClock, remove: Callable[[Store, ManualClock], Awaitable[None]]
) -> None:
    for _ in range(3):
        await store.accept(said("anna's", "7", "box", sender_id="anna"))
        before = await ids(store, BOX)
        await remove(store, clock)
        after = await ids(store, BOX)
        assert all(new > old for new, old in zip(after, before, strict=True)), (before, after)
    everything = await store.replies(None, after=0, limit=1000)
    assert all(text.address.channel for text in everything)


async def test_a_send_that_outlives_its_text_says_nothing_of_a_later_one(store: Store) -> None:
    await store.accept(said("ask", "7", "box"))
    turn = await begin(store, new_turn(BOX))
    closed = await close_or_fold(store, turn.turn_id, "old")
    await store.freeze(closed.outbound[0].id, ["old"])
    assert await store.start_part(closed.outbound[0].id, 0, idempotent=True) is not None
    await store.admin.delete_session(BOX)
    await store.accept(said("ask", "7", "box"))
    turn = await begin(store, new_turn(BOX))
    await close_or_fold(store, turn.turn_id, "new")
    await store.finish_part(closed.outbound[0].id, 0, Receipt())
    assert [letter.outbound.content for letter in await store.undelivered("box")] == ["new"]


async def test_what_is_said_after_all_was_erased_or_has_expired_is_in_the_history(
    store: Store, clock: ManualClock
) -> None:
    await answered(store, GROUP, "anna's")
    for word in ("one", "two"):
        await answered(store, GROUP, word, by=EVE)
    assert await store.compact(await summary_of(store, GROUP))
    await store.admin.erase(Target(sender=EVE))
    for _ in range(2):
        await answered(store, GROUP, "hello?")
        live = await store.live_history(GROUP)
        assert live is not None
        said_so_far = [message.content for message in live.messages]
        assert said_so_far == ["hello?", "noticed hello?", "done", "you said hello?"]
        clock.ms += 1
        await store.admin.sweep_transcripts(clock.ms, breathe)


async def test_a_summary_in_the_making_does_not_bring_back_what_is_erased(store: Store) -> None:
    """Its first message and its last stand; what was erased is between."""
    for word, by in (("anna's", "anna"), ("eve's", EVE), ("anna's", "anna")):
        await answered(store, GROUP, word, by=by)
    made = await summary_of(store, GROUP)
    await store.admin.erase(Target(sender=EVE))
    assert not await store.compact(made)
    assert await store.compact(await summary_of(store, GROUP))
