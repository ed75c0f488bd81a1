"""Senders who may no longer speak: what the store makes of what they sent before."""

from __future__ import annotations

import pytest

from teaagentd.store import Store
from teaagentd.types import SessionKey
from tests.store.steps import begin, close_or_fold, new_turn, said

pytestmark = pytest.mark.anyio

GROUP = SessionKey(channel="box", chat_id="group")
ALLOWED = {"box": frozenset({"anna"})}


async def test_what_waits_of_them_is_set_aside_and_told_once_for_each_chat(store: Store) -> None:
    kept = await store.accept(said("anna's", "group", "box", sender_id="anna"))
    first = await store.accept(said("eve's", "group", "box", sender_id="eve"))
    second = await store.accept(said("eve's too", "group", "box", sender_id="eve"))
    nobody = await store.accept(said("nobody's", "other", "box"))
    elsewhere = await store.accept(said("eve elsewhere", "c", "api", sender_id="eve"))
    done = await store.revoke(ALLOWED, closing="no more")
    assert {str(key): ids for key, ids in done.set_aside.items()} == {
        "box:group": (first.id, second.id),
        "box:other": (nobody.id,),
    }
    assert [text.message_ids for text in done.outbound] == [(first.id, second.id), (nobody.id,)]
    assert [row.id for row in await store.dead_rows()] == [nobody.id, second.id, first.id]
    waiting = {row_id for pending in await store.pending_keys() for row_id in pending.ids}
    assert waiting == {kept.id, elsewhere.id}
    again = await store.revoke(ALLOWED, closing="no more")
    assert (again.set_aside, again.turn_ids, again.outbound) == ({}, (), ())


async def test_a_turn_that_took_in_their_word_is_closed(store: Store) -> None:
    """Whoever else is in it; those whom it does not concern go on."""
    rows = [await store.accept(said(who, "group", "box", sender_id=who)) for who in ("anna", "eve")]
    await begin(store, new_turn(GROUP, turn_id="of both"))
    await store.accept(said("hers", "own", "box", sender_id="anna"))
    own = SessionKey(channel="box", chat_id="own")
    await begin(store, new_turn(own, turn_id="hers"))
    done = await store.revoke(ALLOWED, closing="no more")
    assert done.turn_ids == ("of both",)
    assert [text.message_ids for text in done.outbound] == [tuple(row.id for row in rows)]
    await close_or_fold(store, "hers", "an answer")
    assert await store.running_turns() == ()


async def test_one_that_was_set_aside_can_be_taken_up_again(store: Store) -> None:
    row = await store.accept(said("eve's", "group", "box", sender_id="eve", external_id="e"))
    await store.revoke(ALLOWED, closing="no more")
    same = await store.accept(said("eve's", "group", "box", sender_id="eve", external_id="e"))
    assert (same.id, same.duplicate) == (row.id, True)
    again = await store.retry_dead(row.id)
    assert (await begin(store, new_turn(GROUP))).claimed[0].id == again.id
