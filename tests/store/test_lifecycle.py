"""T1, T4, T5: a turn begins, takes in what waits, goes on after a crash, and closes."""

from __future__ import annotations

from pathlib import Path

import pytest

from teaagentd.errors import TurnEnded
from teaagentd.store import Store
from teaagentd.store.values import Begun, Closed, Folded, NewTurn
from teaagentd.transcript import estimate_message_tokens
from teaagentd.types import Address, InboundMessage, InboxRow, LLMMessage, SessionKey
from tests.store.steps import (
    KEY,
    ManualClock,
    attempt,
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


async def test_a_turn_claims_what_waits_in_order_with_its_notes(store: Store) -> None:
    rows = [await store.accept(said(content)) for content in ("one", "two")]
    elsewhere = await store.accept(said("other chat", chat_id="x"))
    turn = await begin(store)
    assert (turn.key, turn.origin, turn.generation, turn.attempt) == (KEY, "bus", 1, 1)
    assert [row.id for row in turn.claimed] == [row.id for row in rows]
    assert [(m.content, m.note, m.inbox_id) for m in turn.history] == [
        (content, f"note {row.id}", row.id)
        for content, row in zip(("one", "two"), rows, strict=True)
    ]
    assert all(message.id for message in turn.history)
    (pending,) = await store.pending_keys()
    assert pending.ids == (elsewhere.id,)
    (running,) = await store.running_turns()
    assert (running.id, running.key, running.attempt, running.parked) == (
        turn.turn_id,
        KEY,
        1,
        False,
    )


async def test_nothing_pending_begins_nothing(store: Store) -> None:
    async def ask(upto: int | None) -> Begun | None:
        return await store.begin(new_turn(), upto=upto, budget_tokens=None, note=no_note)

    assert await ask(None) is None
    later = await store.accept(said("after the direct turn"))
    assert await ask(later.id - 1) is None
    assert await store.running_turns() == ()
    assert await ask(later.id) is not None


async def test_the_next_turn_sees_the_same_history_and_notes(store: Store, path: Path) -> None:
    first = await started(store, "hi")
    await close_or_fold(store, first.turn_id, "hello")
    kept = (await started(store, "and now?")).history
    assert told(kept) == [("user", "hi"), ("assistant", "hello"), ("user", "and now?")]
    assert kept[0] == first.history[0]
    assert await store.notes(KEY) == ("note 1", "note 2")
    await store.aclose()
    again = await Store.open(path, clock=ManualClock())
    resumed = await again.resume((await again.running_turns())[0].id, notice=None, failed="f")
    assert isinstance(resumed, Begun)
    assert resumed.history == kept
    await again.aclose()


async def test_as_many_messages_as_fit_the_window_and_one_at_least(store: Store) -> None:
    for _ in range(3):
        await store.accept(said("x" * 300))
    size = estimate_message_tokens(LLMMessage(role="user", content="x" * 300, note="note 1"))
    tight = await begin(store, budget=1)
    assert len(tight.claimed) == 1
    # One is in the history: with 2.5 of them one more fits, not two.
    folded = await store.fold(
        tight.turn_id, upto=None, budget_tokens=size * 5 // 2, note=lambda row: "note 1"
    )
    assert len(folded.claimed) == 1
    assert len(await store.pending_rows(KEY)) == 1


async def test_a_note_is_rendered_only_for_a_message_that_is_taken(store: Store) -> None:
    rendered: list[int] = []

    def note(row: InboxRow) -> str:
        rendered.append(row.id)
        return "n"

    for _ in range(3):
        await store.accept(said("x" * 300))
    begun = await store.begin(new_turn(), upto=None, budget_tokens=150, note=note)
    assert begun is not None
    assert rendered == [row.id for row in begun.claimed] == [1]


async def test_a_direct_turn_brings_its_opening_and_leaves_the_rows(store: Store) -> None:
    waiting = await store.accept(said("for the bus"))
    turn = await begin(store, new_turn(origin="direct", opening="direct question"))
    assert turn.claimed == ()
    assert told(turn.history) == [("user", "direct question")]
    closed = await close_or_fold(store, turn.turn_id, "yes", upto=waiting.id - 1)
    assert closed == Closed(outbound=())
    assert len(await store.pending_rows(KEY)) == 1


async def test_a_cron_turn_tells_the_address_it_was_begun_for(store: Store) -> None:
    to = Address(channel="telegram", chat_id="7")
    turn = await begin(store, new_turn(origin="cron", opening="daily report", deliver_to=to))
    closed = await close_or_fold(store, turn.turn_id, "the report")
    assert spoken(closed.outbound) == [("7", "final", ())]
    (letter,) = await store.undelivered("telegram")
    assert (letter.outbound.content, letter.outbound.address) == ("the report", to)


async def test_an_ephemeral_turn_sees_and_leaves_nothing(store: Store, path: Path) -> None:
    await close_or_fold(store, (await started(store, "secret")).turn_id, "noted")
    turn = await begin(store, new_turn(origin="ephemeral", opening="check"))
    assert told(turn.history) == [("user", "check")]
    await decide(store, turn.turn_id, "a", "b")
    await store.start_call(turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a", "found in passing"))
    await close_or_fold(store, turn.turn_id, "all quiet")
    kept = [("user", "secret"), ("assistant", "noted")]
    assert told(await store.transcript(KEY)) == kept
    assert told((await started(store, "next")).history) == [*kept, ("user", "next")]
    own = SessionKey(channel="ephemeral", chat_id="1")
    alone = await begin(store, new_turn(own, origin="ephemeral", opening="ping"))
    await close_or_fold(store, alone.turn_id, "pong")
    assert [record.key for record in await store.sessions()] == [KEY]
    await store.aclose()
    for file in path.parent.iterdir():
        data = file.read_bytes()
        assert b"found in passing" not in data
        assert b"all quiet" not in data


async def test_an_answer_closes_the_turn_once(store: Store, clock: ManualClock) -> None:
    turn = await started(store, "one", "two")
    clock.ms += 1500
    closed = await close_or_fold(store, turn.turn_id, "both", attempts=(attempt(),))
    ids = tuple(row.id for row in turn.claimed)
    assert isinstance(closed, Closed)
    assert spoken(closed.outbound) == [("k", "final", ids)]
    assert await store.replies(KEY, after=0) == closed.outbound
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert (record.outcome, record.ended_at) == ("answered", clock.ms)
    assert record.ended_at - record.started_at == 1500
    assert (record.requests, record.usage.input_tokens, record.usage.output_tokens) == (1, 10, 5)
    assert await store.running_turns() == ()
    with pytest.raises(TurnEnded):
        await close_or_fold(store, turn.turn_id, "again")
    assert await texts(store) == [("final", "both", ids)]


async def test_what_came_in_meanwhile_is_folded_and_the_answer_delivered(store: Store) -> None:
    turn = await started(store, "first")
    second = await store.accept(said("second"))
    folded = await close_or_fold(store, turn.turn_id, "to the first")
    assert isinstance(folded, Folded)
    assert [row.id for row in folded.claimed] == [second.id]
    assert [message.content for message in folded.messages] == ["second"]
    closed = await close_or_fold(store, turn.turn_id, "to the second")
    assert isinstance(closed, Closed)
    assert await texts(store) == [
        ("interim", "to the first", (turn.claimed[0].id,)),
        ("final", "to the second", (second.id,)),
    ]
    assert told(await store.transcript(KEY)) == [
        ("user", "first"),
        ("assistant", "to the first"),
        ("user", "second"),
        ("assistant", "to the second"),
    ]


async def test_without_rounds_left_the_turn_closes_and_the_rest_waits(store: Store) -> None:
    turn = await started(store, "first")
    second = await store.accept(said("second"))
    assert isinstance(await close_or_fold(store, turn.turn_id, "a", may_fold=False), Closed)
    assert [row.id for row in (await begin(store)).claimed] == [second.id]


async def test_rows_behind_a_direct_turn_are_not_folded(store: Store) -> None:
    turn = await started(store, "first")
    barrier = turn.claimed[0].id
    await store.accept(said("after the direct turn"))
    nothing = await store.fold(turn.turn_id, upto=barrier, budget_tokens=None, note=no_note)
    assert nothing == Folded(messages=(), claimed=())
    assert isinstance(await close_or_fold(store, turn.turn_id, "a", upto=barrier), Closed)


async def test_folding_waits_for_the_end_of_a_round(store: Store) -> None:
    # microclaw/microclaw#330
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a", "b")
    steering = await store.accept(said("and this"))

    async def fold() -> Folded:
        return await store.fold(turn.turn_id, upto=None, budget_tokens=None, note=no_note)

    await store.start_call(turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a"))
    assert (await fold()).claimed == ()
    await store.start_call(turn.turn_id, "b")
    await store.finish_call(turn.turn_id, result("b"))
    folded = await fold()
    assert [row.id for row in folded.claimed] == [steering.id]
    assert [role for role, _ in told(await store.transcript(KEY))] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]


async def test_every_address_gets_one_final_text_with_its_own_messages(store: Store) -> None:
    ids = []
    for channel, chat in (("mail", "ann"), ("telegram", "bob"), ("mail", "ann")):
        message = InboundMessage(channel=channel, chat_id=chat, content="hi", session_key=KEY)
        ids.append((await store.accept(message)).id)
    turn = await begin(store, new_turn())
    late = await store.accept(
        InboundMessage(channel="web", chat_id="tab", content="me too", session_key=KEY)
    )
    await close_or_fold(store, turn.turn_id, "interim")
    await close_or_fold(store, turn.turn_id, "final")
    assert [
        (text.address.chat_id, text.kind, text.message_ids)
        for text in await store.replies(KEY, after=0)
    ] == [
        ("ann", "interim", (ids[0], ids[2])),
        ("bob", "interim", (ids[1],)),
        ("ann", "final", ()),
        ("bob", "final", ()),
        ("tab", "final", (late.id,)),
    ]


async def test_every_other_exit_says_what_happened_and_leaves_what_waits(store: Store) -> None:
    # HKUDS/nanobot#3045
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a", "b", "c")
    await store.start_call(turn.turn_id, "b")
    await store.start_call(turn.turn_id, "c")
    await store.finish_call(turn.turn_id, result("c", "output of c"))
    waiting = await store.accept(said("later"))
    await store.close(turn.turn_id, text="I ran out of time.", outcome="timeout", attempts=())
    assert await texts(store) == [("final", "I ran out of time.", (turn.claimed[0].id,))]
    following = await begin(store)
    assert [row.id for row in following.claimed] == [waiting.id]
    assert told(following.history)[2:6] == [
        ("tool", "[not run: the turn was interrupted before this call started]"),
        ("tool", "[interrupted: this call had started and its outcome is unknown]"),
        ("tool", "output of c"),
        ("assistant", "I ran out of time."),
    ]
    assert [message.tool_call_id for message in following.history[2:5]] == ["a", "b", "c"]


async def test_a_crashed_turn_goes_on_and_its_open_calls_are_never_rerun(store: Store) -> None:
    # sipeed/picoclaw#2364, OpenHands/software-agent-sdk#4487
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a", "b")
    await store.start_call(turn.turn_id, "a")
    resumed = await store.resume(turn.turn_id, notice="I was restarted.", failed="f")
    assert isinstance(resumed, Begun)
    assert (resumed.attempt, resumed.claimed) == (2, turn.claimed)
    assert told(resumed.history)[2:] == [
        ("tool", "[interrupted: this call had started and its outcome is unknown]"),
        ("tool", "[not run: the turn was interrupted before this call started]"),
    ]
    assert spoken(resumed.outbound) == [("k", "notice", ())]
    # Written once: a second crash adds nothing.
    again = await store.resume(turn.turn_id, notice=None, failed="f")
    assert isinstance(again, Begun)
    assert again.history == resumed.history
    await close_or_fold(store, turn.turn_id, "done")
    assert (await texts(store))[-1] == ("final", "done", (turn.claimed[0].id,))


async def test_the_fourth_attempt_is_not_made(store: Store) -> None:
    turn = await started(store, "poison")
    second = await store.accept(said("second"))
    await close_or_fold(store, turn.turn_id, "half of it")
    for expected in (2, 3):
        resumed = await store.resume(turn.turn_id, notice=None, failed="I gave up.")
        assert isinstance(resumed, Begun)
        assert resumed.attempt == expected
    condemned = await store.resume(turn.turn_id, notice=None, failed="I gave up.")
    assert isinstance(condemned, Closed)
    assert spoken(condemned.outbound) == [("k", "final", (second.id,))]
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert record.outcome == "failed"
    # What was answered before is not dead.
    assert [dead.id for dead in await store.dead_rows()] == [second.id]
    assert (await store.depths()).dead_rows == 1
    assert await store.running_turns() == ()


async def test_a_finished_round_starts_the_attempts_over(store: Store) -> None:
    turn = await started(store, "go")
    for _ in range(5):
        resumed = await store.resume(turn.turn_id, notice=None, failed="f")
        assert isinstance(resumed, Begun)
        assert resumed.attempt == 2
        await decide(store, turn.turn_id, "a", "b")
        await store.finish_call(turn.turn_id, result("a"))
        assert (await store.running_turns())[0].attempt == 2
        await store.finish_call(turn.turn_id, result("b"))
        assert (await store.running_turns())[0].attempt == 1


async def test_a_planned_shutdown_does_not_count(store: Store) -> None:
    turn = await started(store, "go")
    for _ in range(5):
        await store.park(turn.turn_id)
        assert (await store.running_turns())[0].parked
        resumed = await store.resume(turn.turn_id, notice=None, failed="f")
        assert isinstance(resumed, Begun)
        assert resumed.attempt == 1
        assert not (await store.running_turns())[0].parked


async def test_a_turn_left_over_on_a_free_key_is_closed_by_the_next(store: Store) -> None:
    old = await started(store, "first")
    new = await started(store, "second")
    assert spoken(new.outbound) == [("k", "final", (old.claimed[0].id,))]
    assert [turn.id for turn in await store.running_turns()] == [new.turn_id]
    record = await store.turn(old.turn_id)
    assert record is not None
    assert record.outcome == "interrupted"
    with pytest.raises(TurnEnded):
        await close_or_fold(store, old.turn_id, "late")
    assert [role for role, _ in told(new.history)] == ["user", "assistant", "user"]


async def test_usage_is_booked_whatever_became_of_the_turn(store: Store) -> None:
    turn = await started(store, "go")
    await store.decide(
        turn.turn_id, LLMMessage(role="assistant", content="x"), notice=None, attempts=(attempt(),)
    )
    await command(store, "stop")
    with pytest.raises(TurnEnded):
        await close_or_fold(store, turn.turn_id, "late", attempts=(attempt(), attempt()))
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert (record.requests, record.usage.input_tokens) == (3, 30)


async def test_an_unknown_figure_makes_the_sum_unknown(store: Store) -> None:
    turn = await started(store, "go")
    await close_or_fold(store, turn.turn_id, "x", attempts=(attempt(), attempt(None)))
    record = await store.turn(turn.turn_id)
    assert record is not None
    assert (record.usage.input_tokens, record.usage.output_tokens) == (None, 10)
    quiet = await started(store, "go")
    none = await store.turn(quiet.turn_id)
    assert none is not None
    assert (none.requests, none.usage.input_tokens) == (0, 0)
    assert await store.turn("unknown") is None


async def test_a_turn_that_needs_an_opening_must_bring_it(store: Store) -> None:
    with pytest.raises(ValueError, match="opening"):
        await store.begin(
            NewTurn(id="t", key=KEY, origin="direct"), upto=None, budget_tokens=None, note=no_note
        )
    assert await store.running_turns() == ()
