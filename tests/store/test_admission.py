"""T0 and T7: messages and commands come in, once each, and nothing of a refused one is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from teaagentd.errors import BusFull, ExternalIdConflict, StoreError, TurnEnded
from teaagentd.store import Store
from teaagentd.store.values import Accepted
from teaagentd.types import Address, Attachment, InboundMessage, SessionKey
from tests.store.steps import (
    KEY,
    ManualClock,
    answer,
    begin,
    close_or_fold,
    command,
    decide,
    new_turn,
    no_note,
    result,
    said,
    spoken,
    started,
    texts,
    told,
)

pytestmark = pytest.mark.anyio


async def test_an_accepted_message_waits_with_all_that_it_said(
    store: Store, clock: ManualClock
) -> None:
    attachment = Attachment(path="/a/b", media_type="image/png", name="b.png", size=7)
    message = InboundMessage(
        channel="telegram",
        chat_id="7",
        content="look",
        sender_id="ann",
        external_id="e1",
        attachments=(attachment,),
        session_key=SessionKey(channel="shared", chat_id="desk"),
    )
    accepted = await store.accept(message)
    assert (accepted.session_key, accepted.duplicate) == (message.key, False)
    (row,) = await store.pending_rows(message.key)
    assert (row.id, row.message, row.accepted_at) == (accepted.id, message, clock.ms)
    (pending,) = await store.pending_keys()
    assert (pending.key, pending.ids) == (message.key, (accepted.id,))


async def test_the_same_message_again_is_a_no_op(store: Store) -> None:
    first = await store.accept(said("hi", external_id="e"))
    again = await store.accept(said("hi", external_id="e"))
    assert (again.id, again.duplicate) == (first.id, True)
    assert len(await store.pending_rows(KEY)) == 1
    # Another chat has ids of its own.
    assert not (await store.accept(said("hi", chat_id="other", external_id="e"))).duplicate


@pytest.mark.parametrize(
    "other",
    [
        said("hello", external_id="e"),
        said("hi", external_id="e", sender_id="bob"),
        InboundMessage(
            channel="api",
            chat_id="k",
            content="hi",
            external_id="e",
            attachments=(Attachment(path="p", media_type="t", name="n", size=1),),
        ),
    ],
    ids=["content", "sender", "attachments"],
)
async def test_a_known_id_with_another_body_is_a_conflict(
    store: Store, other: InboundMessage
) -> None:
    first = await store.accept(said("hi", external_id="e"))
    with pytest.raises(ExternalIdConflict) as caught:
        await store.accept(other)
    assert caught.value.message_id == first.id
    assert [row.message.content for row in await store.pending_rows(KEY)] == ["hi"]


async def test_a_full_inbox_refuses_and_still_knows_what_it_has(store: Store) -> None:
    for number in range(5):
        await store.accept(said(f"m{number}", chat_id=f"c{number}", external_id="e"))
    with pytest.raises(BusFull):
        await store.accept(said("one more"))
    assert (await store.accept(said("m0", chat_id="c0", external_id="e"))).duplicate
    with pytest.raises(ExternalIdConflict):
        await store.accept(said("other", chat_id="c0", external_id="e"))
    assert (await store.depths()).inbox == 5
    # A claimed row makes room.
    await begin(store, new_turn(SessionKey(channel="api", chat_id="c0")))
    await store.accept(said("one more"))


async def test_a_command_passes_a_full_inbox_and_is_done_at_once(store: Store) -> None:
    for number in range(5):
        await store.accept(said(f"m{number}", chat_id=f"c{number}"))
    done = await command(store, "none", message=said("/help", external_id="e"))
    assert done.outcome is not None
    assert await texts(store) == [("final", "none done, 0 wait", (done.id,))]
    assert await store.pending_rows(KEY) == ()
    assert (await store.depths()).inbox == 5


async def test_a_command_is_carried_out_once(store: Store) -> None:
    first = await command(store, "new", message=said("/new", external_id="e"))
    again = await command(store, "new", message=said("/new", external_id="e"))
    assert (again.id, again.duplicate, again.outcome, again.outbound) == (first.id, True, None, ())
    assert first.outcome is not None
    assert first.outcome.generation == 2
    later = await command(store, "none", message=said("/status"))
    assert later.outcome is not None
    assert later.outcome.generation == 2
    with pytest.raises(ExternalIdConflict):
        await command(store, "stop", message=said("/stop", external_id="e"))


async def test_stop_closes_the_turn_and_keeps_what_waits_behind_it(store: Store) -> None:
    # getnao/nao#852, juspay/olai#194
    turn = await started(store, "summarise a.txt")
    await decide(store, turn.turn_id, "read", "exec")
    await store.start_call(turn.turn_id, "read")
    await store.finish_call(turn.turn_id, result("read", "the text"))
    await store.start_call(turn.turn_id, "exec")
    behind = [await store.accept(said(content)) for content in ("m1", "m2")]
    stop = await command(store, "stop", message=said("/stop"))

    assert stop.outcome is not None
    assert stop.outcome.stopped_turn_id == turn.turn_id
    assert (stop.outcome.stopped_waiting, stop.outcome.still_pending) == (0, 2)
    # The commander's own text answers the stopped message too.
    assert spoken(stop.outbound) == [("k", "final", (turn.claimed[0].id, stop.id))]
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert record.outcome == "stopped"
    following = await begin(store)
    assert [row.id for row in following.claimed] == [row.id for row in behind]
    assert told(following.history) == [
        ("user", "summarise a.txt"),
        ("assistant", ""),
        ("tool", "the text"),
        ("tool", "[interrupted: this call had started and its outcome is unknown]"),
        ("assistant", "Stopped."),
        ("user", "m1"),
        ("user", "m2"),
    ]


async def test_what_a_stopped_turn_still_writes_is_refused(store: Store) -> None:
    turn = await started(store, "hi")
    await decide(store, turn.turn_id, "a")
    await command(store, "stop")
    before = await store.transcript(KEY)
    for late in (
        store.start_call(turn.turn_id, "a"),
        store.finish_call(turn.turn_id, result("a")),
        store.decide(turn.turn_id, answer("x"), notice="n", attempts=()),
        store.fold(turn.turn_id, upto=None, budget_tokens=None, note=no_note),
        close_or_fold(store, turn.turn_id, "late"),
        store.close(turn.turn_id, text="late", outcome="failed", attempts=()),
        store.park(turn.turn_id),
        store.resume(turn.turn_id, notice="n", failed="f"),
    ):
        with pytest.raises(TurnEnded):
            await late
    assert await store.transcript(KEY) == before
    assert [content for _, content, _ in await texts(store)] == ["Stopped."]


async def test_stop_without_a_turn_closes_what_waits_and_remembers_it(store: Store) -> None:
    mine = await store.accept(said("mine"))
    other = await store.accept(
        InboundMessage(channel="mail", chat_id="x", content="theirs", session_key=KEY)
    )
    stop = await command(store, "stop", message=said("/stop"))
    assert stop.outcome is not None
    assert (stop.outcome.stopped_turn_id, stop.outcome.stopped_waiting) == (None, 2)
    assert spoken(stop.outbound) == [
        ("x", "final", (other.id,)),
        ("k", "final", (mine.id, stop.id)),
    ]
    assert stop.outbound[0].content == "Stopped."
    assert await store.pending_rows(KEY) == ()
    following = await started(store, "what did I ask?")
    assert told(following.history) == [
        ("user", "mine"),
        ("user", "theirs"),
        ("assistant", "Stopped."),
        ("user", "what did I ask?"),
    ]


async def test_stop_from_outside_tells_every_address(store: Store) -> None:
    turn = await started(store, "hi")
    stop = await command(store, "stop")
    assert (stop.id, stop.duplicate) == (None, False)
    assert spoken(stop.outbound) == [("k", "final", (turn.claimed[0].id,))]
    nothing = await command(store, "stop")
    assert nothing.outbound == ()


async def test_new_closes_the_turn_and_forgets_the_history_but_not_what_waits(
    store: Store,
) -> None:
    # volcengine/OpenViking#4756
    turn = await started(store, "old")
    waiting = await store.accept(said("for the new one"))
    new = await command(store, "new", message=said("/new"))
    assert new.outcome is not None
    assert new.outcome.stopped_turn_id == turn.turn_id
    assert (new.outcome.still_pending, new.outcome.generation) == (1, 2)
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert record.outcome == "superseded"
    with pytest.raises(TurnEnded):
        await close_or_fold(store, turn.turn_id, "too late")
    following = await begin(store)
    assert following.generation == 2
    assert [row.id for row in following.claimed] == [waiting.id]
    assert told(following.history) == [("user", "for the new one")]
    # The old ones are kept, outside the history.
    kept = await store.transcript(KEY)
    assert told(kept) == [("user", "old"), ("assistant", "Stopped."), *told(following.history)]


async def test_the_last_address_is_that_of_a_message_not_of_a_command(store: Store) -> None:
    assert await store.last_address() is None
    await store.accept(said("hi", channel="mail", chat_id="ann"))
    await command(store, "none", message=said("/status", channel="web", chat_id="tab"))
    assert await store.last_address() == Address(channel="mail", chat_id="ann")


async def test_a_dead_message_is_retried_as_a_new_one_once(store: Store) -> None:
    turn = await started(store, "poison")
    for _ in range(3):
        await store.resume(turn.turn_id, notice=None, failed="gave up")
    (dead,) = await store.dead_rows()
    assert (dead.id, dead.key, dead.turn_id) == (turn.claimed[0].id, KEY, turn.turn_id)
    retried = await store.retry_dead(dead.id)
    assert retried.id > dead.id
    assert not retried.duplicate
    again = await store.retry_dead(dead.id)
    assert again == Accepted(id=retried.id, session_key=KEY, duplicate=True)
    assert await store.dead_rows() == ()
    second = await begin(store)
    assert [(row.id, row.message.content) for row in second.claimed] == [(retried.id, "poison")]
    await close_or_fold(store, second.turn_id, "answered")
    assert await texts(store) == [
        ("final", "gave up", (dead.id,)),
        ("final", "answered", (retried.id,)),
    ]
    with pytest.raises(StoreError):
        await store.retry_dead(retried.id)


async def test_half_an_emoji_is_cleaned_on_its_way_in(store: Store, path: Path) -> None:
    # NousResearch/hermes-agent#68254, agent0ai/agent-zero#1773
    message = InboundMessage(
        channel="api",
        chat_id="c\udc80",
        content="a\ud83d\ude00b\ud83d",
        sender_id="s\udcff",
        external_id="e\ud800",
        attachments=(Attachment(path="\udcff", media_type="t", name="\udcff", size=1),),
    )
    accepted = await store.accept(message)
    assert (await store.accept(message)).duplicate
    (row,) = await store.pending_rows(accepted.session_key)
    assert row.message.content == "a😀b�"
    assert row.message.attachments[0].path == "�"
    assert accepted.session_key == SessionKey(channel="api", chat_id="c�")
    stop = await command(store, "stop", message.key, message=said("/stop\ud83d"))
    assert stop.outcome is not None
    assert stop.outcome.stopped_waiting == 1


async def test_keys_that_look_alike_are_sessions_of_their_own(path: Path) -> None:
    # HKUDS/nanobot#4057, NousResearch/hermes-agent#84686, sipeed/picoclaw#1330
    store = await Store.open(path, clock=ManualClock(), max_pending=100)
    names = ["telegram:a_b", "telegram:a:b", "telegram/a:b", "telegram:A_B", "slack:C1/17.5"]
    names += ["x:..", "x:" + "y" * 300, "x:CON", "x:", "x:\0", "x:\0a"]
    keys = [SessionKey.parse(name) for name in names]
    keys += [SessionKey(channel="a:b", chat_id="c"), SessionKey(channel="a", chat_id="b:c")]
    for number, key in enumerate(keys):
        await store.accept(said(f"m{number}", chat_id=key.chat_id, channel=key.channel))
    for number, key in enumerate(keys):
        turn = await begin(store, new_turn(key))
        assert told(turn.history) == [("user", f"m{number}")]
        await close_or_fold(store, turn.turn_id, f"a{number}")
    await store.aclose()
    store = await Store.open(path, clock=ManualClock())
    for number, key in enumerate(keys):
        assert told(await store.transcript(key)) == [
            ("user", f"m{number}"),
            ("assistant", f"a{number}"),
        ]
    await store.aclose()
