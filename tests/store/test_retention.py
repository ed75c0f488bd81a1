"""What is older than it need be kept goes; nothing that is needed does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from teaagentd.services.retention import DAY_MS, Keep, Retention
from teaagentd.store import Store
from teaagentd.store.retention import EXPIRED
from teaagentd.testing import FakeClock
from teaagentd.types import Receipt, SessionKey
from tests.store.steps import ManualClock, begin, close_or_fold, database, decide, new_turn, result
from tests.store.steps import said as words

pytestmark = pytest.mark.anyio

BOX = SessionKey(channel="box", chat_id="7")
OLD = "old-words-of-long-ago"


async def breathe() -> None:
    """No pause in a test."""


async def turn(store: Store, text: str, turn_id: str, *, sent: bool = True) -> None:
    """One turn with a call, whose answer is delivered."""
    await store.accept(words(text, "7", "box", external_id=turn_id))
    await begin(store, new_turn(BOX, turn_id=turn_id))
    await decide(store, turn_id, f"call of {turn_id}")
    await store.start_call(turn_id, f"call of {turn_id}")
    await store.finish_call(turn_id, result(f"call of {turn_id}"))
    closed = await close_or_fold(store, turn_id, f"answer to {text}")
    if sent:
        for outbound in closed.outbound:
            await store.freeze(outbound.id, [outbound.content])
            await store.start_part(outbound.id, 0, idempotent=True)
            await store.finish_part(outbound.id, 0, Receipt())


async def test_old_turns_go_whole_and_the_history_goes_on_behind_them(
    store: Store, clock: ManualClock, path: Path
) -> None:
    for number in range(3):
        await turn(store, f"{OLD} {number}", f"old-{number}")
    before = await store.totals()
    clock.ms += 40 * DAY_MS
    await turn(store, "new words", "new")
    await store.accept(words("it waits", "7", "box"))
    await store.admin.sweep_transcripts(clock.ms - 30 * DAY_MS, breathe)
    await store.admin.sweep_texts(clock.ms - 30 * DAY_MS, breathe)
    await store.admin.shrink(breathe)
    kept = [message.content for message in await store.transcript(BOX)]
    assert kept == ["new words", "", "done", "answer to new words"]
    begun = await begin(store, new_turn(BOX, turn_id="next"))
    assert [message.content for message in begun.history] == [*kept, "it waits"]
    assert (await store.accept(words(f"{OLD} 1", "7", "box", external_id="old-1"))).duplicate
    after = await store.totals()
    assert after.turns["answered"].count == before.turns["answered"].count + 1
    for file in path.parent.iterdir():
        assert OLD.encode() not in file.read_bytes(), file
    with database(path) as other:
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []
        assert other.execute("SELECT count(*) FROM calls").fetchone() == (1,)
        assert other.execute("SELECT count(*) FROM turns").fetchone() == (5,)


async def test_what_waits_works_or_was_given_up_stays_however_old(
    store: Store, clock: ManualClock
) -> None:
    await turn(store, "given up", "given-up", sent=False)
    [letter] = await store.undelivered("box")
    await store.refuse(letter.outbound.id, "gone")
    await store.accept(words("at work"))
    await begin(store, new_turn(turn_id="working"))
    await store.accept(words("waits", "other"))
    clock.ms += 4000 * DAY_MS
    await store.admin.sweep_transcripts(clock.ms, breathe)
    await store.admin.sweep_texts(clock.ms, breathe)
    assert [entry.content for entry in await store.admin.outbox()] == ["answer to given up"]
    assert [entry.content for entry in await store.admin.inbox()] == ["waits"]
    await close_or_fold(store, "working", "done at last")
    assert (await store.last_address()) is not None


async def test_texts_go_before_the_messages_that_they_answer(
    store: Store, clock: ManualClock
) -> None:
    await turn(store, "hello", "one")
    clock.ms += 100 * DAY_MS
    await store.admin.sweep_texts(clock.ms - DAY_MS, breathe)
    assert [text.content for text in await store.replies(BOX, after=0)] == [EXPIRED]
    assert [text.message_ids for text in await store.replies(BOX, after=0)] == [(1,)]
    assert (await store.transcript(BOX))[-1].content == "answer to hello"


async def test_room_is_given_back_while_turns_go_on(
    store: Store, clock: ManualClock, path: Path
) -> None:
    for number in range(60):
        await turn(store, "x" * 50_000, f"t{number}")
    await store.admin.shrink(breathe)
    full = path.stat().st_size
    clock.ms += 100 * DAY_MS
    await turn(store, "small", "small")
    during: list[int] = []

    async def work() -> None:
        during.append((await store.accept(words("meanwhile", f"c{len(during)}"))).id)
        await store.admin.drop_row(during[-1], text="no")

    await store.admin.sweep_transcripts(clock.ms - DAY_MS, work)
    await store.admin.sweep_texts(clock.ms - DAY_MS, work)
    assert await store.admin.shrink(work) > 0
    assert path.stat().st_size < full / 3
    assert len(during) > 5


class Swept:
    """A retention of 30 days over a store, and its clock."""

    def __init__(self, store: Store, clock: FakeClock, logs: Path) -> None:
        self.clock = clock
        keep = Keep(transcripts=30, outbox=30, logs=30)
        self.files = 0
        """How often files were swept."""

        async def sweep_files() -> None:
            self.files += 1

        self.retention = Retention(
            store=store, clock=clock, keep=lambda: keep, logs=logs, sweep_files=sweep_files
        )


async def test_a_clock_that_jumps_empties_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await Store.open(tmp_path / "state.db", clock=clock)
    try:
        await turn(store, "hello", "one")
        swept = Swept(store, clock, tmp_path)
        assert await swept.retention.look()
        assert not await swept.retention.look()
        clock.jump(10 * 365 * 86_400)
        assert not await swept.retention.look()
        clock.advance(3600)
        assert not await swept.retention.look()
        clock.jump(-10 * 365 * 86_400)
        clock.advance(86_400)
        assert await swept.retention.look()
        clock.jump(-3600)
        assert not await swept.retention.look()
        assert len(await store.transcript(BOX)) == 4
    finally:
        await store.aclose()


async def test_time_that_passed_is_believed_after_a_day(tmp_path: Path) -> None:
    """Nobody spoke for long, or the machine was off."""
    clock = FakeClock()
    store = await Store.open(tmp_path / "state.db", clock=clock)
    try:
        await turn(store, "hello", "one")
        clock.jump(400 * 86_400)
        swept = Swept(store, clock, tmp_path)
        assert not await swept.retention.look()
        for _ in range(23):
            clock.advance(3600)
            assert not await swept.retention.look()
        clock.advance(3600)
        assert await swept.retention.look()
        assert await store.transcript(BOX) == ()
    finally:
        await store.aclose()


async def test_old_logs_go_and_others_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await Store.open(tmp_path / "state.db", clock=clock)
    try:
        for name, age in (("teaagentd.log", 1), ("teaagentd.log.1", 31), ("notes.txt", 99)):
            (tmp_path / name).write_text("x")
            at = time.time() - age * 86_400
            os.utime(tmp_path / name, (at, at))
        assert await Swept(store, clock, tmp_path).retention.look()
        assert not (tmp_path / "teaagentd.log.1").exists()
        assert (tmp_path / "teaagentd.log").exists()
        assert (tmp_path / "notes.txt").exists()
    finally:
        await store.aclose()
