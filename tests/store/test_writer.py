"""The writer: one commit for all that wait, a savepoint each, and an answer for every caller."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from teaagentd.errors import BusFull, StoreError, StoreUnavailable
from teaagentd.store import Store
from teaagentd.store.commits import COMMITS
from teaagentd.store.database import Database
from teaagentd.types import Address, InboxRow, SessionKey
from tests.store.life import live
from tests.store.steps import (
    KEY,
    ManualClock,
    begin,
    close_or_fold,
    database,
    new_turn,
    no_note,
    said,
    started,
    texts,
)

pytestmark = pytest.mark.anyio


class Held:
    """An `on_commit` that counts, and that can hold the writer just before a commit."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.release = threading.Event()
        self.release.set()
        self.reached = threading.Event()

    def __call__(self, name: str, when: str) -> None:
        self.seen.append((name, when))
        if when == "before":
            self.reached.set()
            assert self.release.wait(10)

    async def until_reached(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 10)
        self.reached.clear()


async def test_what_waits_is_committed_together(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, on_commit=held)
    held.release.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.accept, said("first"))
        await held.until_reached()
        for number in range(20):
            tasks.start_soon(store.accept, said(f"m{number}", chat_id=f"c{number}"))
        await anyio.wait_all_tasks_blocked()
        held.release.set()
    # The first alone, then all others between one "before" and one "after" of the batch.
    assert [when for _, when in held.seen] == ["before", "after"] + 20 * ["before"] + 20 * ["after"]
    assert (await store.depths()).inbox == 21
    await store.aclose()


async def test_one_that_fails_leaves_its_siblings_alone(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, max_pending=3, on_commit=held)
    held.release.clear()
    refused: list[int] = []

    async def accept(number: int) -> None:
        try:
            await store.accept(said(f"m{number}", chat_id=f"c{number}"))
        except BusFull:
            refused.append(number)

    async def broken_note() -> None:
        def note(row: InboxRow) -> str:
            raise LookupError("no such note")

        with pytest.raises(LookupError):
            await store.begin(new_turn(), upto=None, budget_tokens=None, note=note)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.accept, said("first"))
        await held.until_reached()
        tasks.start_soon(broken_note)
        for number in range(5):
            tasks.start_soon(accept, number)
        await anyio.wait_all_tasks_blocked()
        held.release.set()
    assert len(refused) == 3
    assert (await store.depths()).inbox == 3
    assert await store.running_turns() == ()
    assert [row.message.content for row in await store.pending_rows(KEY)] == ["first"]
    await store.aclose()


async def test_a_name_that_is_no_commit_point_is_refused(path: Path) -> None:
    database = Database(path)
    await database.open()
    with pytest.raises(ValueError, match="T9"):
        await database.write("T9.other", lambda connection: None)
    await database.close()


async def test_every_commit_point_is_made_and_none_other(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, on_commit=held)
    await live(store)
    await store.aclose()
    counts = Counter(held.seen)
    assert {name for name, _ in counts} == set(COMMITS)
    for name in COMMITS:
        assert counts[name, "before"] == counts[name, "after"] > 0


async def test_what_changes_nothing_is_no_commit(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, on_commit=held)
    await store.accept(said("hi", external_id="e"))
    turn = await begin(store)
    held.seen.clear()
    await store.accept(said("hi", external_id="e"))
    assert await store.begin(new_turn(), upto=None, budget_tokens=None, note=no_note) is None
    await store.fold(turn.turn_id, upto=None, budget_tokens=None, note=no_note)
    await store.ping()
    assert held.seen == []
    await store.aclose()


@pytest.mark.parametrize("native", [True, False], ids=["task", "scope"])
async def test_a_cancelled_caller_revokes_nothing_and_learns_the_outcome(
    path: Path, clock: ManualClock, native: bool
) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, on_commit=held)
    held.release.clear()
    outcome: list[str] = []

    async def caller() -> None:
        accepted = await store.accept(said("hi"))
        outcome.append(f"accepted {accepted.id}")
        try:
            await anyio.sleep(10)
        except asyncio.CancelledError:
            outcome.append("cancelled at the next wait")
            raise

    async def free() -> None:
        await anyio.sleep(0.05)
        held.release.set()

    async with anyio.create_task_group() as tasks:
        if native:
            task = asyncio.create_task(caller())
            await held.until_reached()
            tasks.start_soon(free)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            scope = anyio.CancelScope()

            async def scoped() -> None:
                with scope:
                    await caller()

            tasks.start_soon(scoped)
            await held.until_reached()
            tasks.start_soon(free)
            scope.cancel()
    assert outcome == ["accepted 1", "cancelled at the next wait"]
    assert len(await store.pending_rows(KEY)) == 1
    await store.aclose()


async def test_a_cancelled_caller_still_gets_the_error(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, max_pending=1, on_commit=held)
    held.release.clear()
    caught: list[BusFull] = []

    async def refused(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await store.accept(said("second"))
            except BusFull as error:
                caught.append(error)

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        tasks.start_soon(store.accept, said("first"))
        await held.until_reached()
        tasks.start_soon(refused, scope)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        held.release.set()
    assert len(caught) == 1
    await store.aclose()


async def test_the_end_of_the_writer_reaches_everyone_who_waits(
    path: Path, clock: ManualClock
) -> None:
    armed = threading.Event()
    release = threading.Event()

    def die(name: str, when: str) -> None:
        if armed.is_set():
            assert release.wait(10)
            raise SystemExit("the writer is gone")

    store = await Store.open(path, clock=clock, on_commit=die)
    await store.accept(said("kept"))
    armed.set()
    errors: list[StoreUnavailable] = []

    async def refused(number: int) -> None:
        try:
            await store.accept(said("lost", chat_id=f"c{number}"))
        except StoreUnavailable as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(refused, number)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert len(errors) == 5
    for again in (store.accept(said("later")), store.ping()):
        with pytest.raises(StoreUnavailable, match="writer"):
            await again
    await store.aclose()
    with database(path) as other:
        assert other.execute("SELECT content FROM inbox").fetchall() == [("kept",)]


async def test_a_ping_comes_back_after_what_was_queued(path: Path, clock: ManualClock) -> None:
    held = Held()
    store = await Store.open(path, clock=clock, on_commit=held)
    await store.ping()
    held.release.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.accept, said("hi"))
        await held.until_reached()
        with anyio.move_on_after(0.05) as late:
            await store.ping()
        assert late.cancelled_caught
        held.release.set()
    await store.ping()
    await store.aclose()


async def test_closing_finishes_what_is_queued_and_ends_every_thread(
    path: Path, clock: ManualClock
) -> None:
    before = set(threading.enumerate())
    store = await Store.open(path, clock=clock)
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(store.accept, said("m", chat_id=f"c{number}"))
            tasks.start_soon(store.depths)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(store.aclose)
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.accept(said("late"))
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.depths()
    with database(path) as other:
        assert other.execute("SELECT count(*) FROM inbox").fetchone() == (10,)
    for _ in range(100):
        if not set(threading.enumerate()) - before:
            break
        await anyio.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert not path.with_name("state.db-wal").exists()


async def test_a_mistake_in_a_statement_is_an_error_of_the_store(
    path: Path, clock: ManualClock
) -> None:
    store = await Store.open(path, clock=clock)
    turn = await started(store, "hi")
    duplicate = new_turn(SessionKey(channel="api", chat_id="x"), "direct", "again")
    twin = type(duplicate)(
        id=turn.turn_id, key=duplicate.key, origin="direct", opening=duplicate.opening
    )
    with pytest.raises(StoreError, match="the beginning of the turn"):
        await begin(store, twin)
    await close_or_fold(store, turn.turn_id, "fine")
    assert await texts(store) == [("final", "fine", (1,))]
    await store.aclose()


async def test_another_program_may_read_and_write_in_between(
    path: Path, clock: ManualClock
) -> None:
    # NousResearch/hermes-agent#109841
    store = await Store.open(path, clock=clock, max_pending=1000)
    with database(path) as other:
        for number in range(30):
            await store.accept(said(f"m{number}"))
            other.execute("UPDATE sessions SET active_at = active_at + 1")
            found = other.execute("SELECT count(*) FROM inbox").fetchone()
            assert found == (number + 1,)
    with database(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert await store.last_address() == Address(channel="api", chat_id="k")
    await store.aclose()


async def test_a_lock_of_another_program_is_waited_for(path: Path, clock: ManualClock) -> None:
    # NousResearch/hermes-agent#73721
    store = await Store.open(path, clock=clock)
    async with anyio.create_task_group() as tasks:
        with database(path) as other:
            other.execute("BEGIN IMMEDIATE")
            tasks.start_soon(store.accept, said("waits for the lock"))
            await anyio.sleep(0.1)
            assert await store.pending_rows(KEY) == ()
            other.execute("ROLLBACK")
    assert len(await store.pending_rows(KEY)) == 1
    await store.aclose()


async def test_a_lock_that_stays_is_said_to_every_caller(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teaagentd.store.opening.BUSY_TIMEOUT_S", 0.1)
    store = await Store.open(path, clock=clock)
    refusals: list[StoreUnavailable] = []

    async def refused(number: int) -> None:
        try:
            await store.accept(said("x", chat_id=f"c{number}"))
        except StoreUnavailable as error:
            refusals.append(error)

    with database(path) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(refused, number)
    assert len(refusals) == 200
    assert all("locked" in str(error) for error in refusals)
    await store.accept(said("x"))
    await store.aclose()


async def test_a_long_read_holds_nobody_up(path: Path, clock: ManualClock) -> None:
    store = await Store.open(path, clock=clock)
    await store.accept(said("seen"))
    with database(path) as other:
        other.execute("BEGIN")
        rows = other.execute("SELECT content FROM inbox")
        assert rows.fetchone() == ("seen",)
        for number in range(50):
            await store.accept(said(f"m{number}"))
        assert other.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
        other.execute("ROLLBACK")
    assert (await store.depths()).inbox == 51
    await store.aclose()


async def test_opening_that_is_cancelled_leaves_no_thread(path: Path, clock: ManualClock) -> None:
    before = set(threading.enumerate())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Store.open(path, clock=clock)
    for _ in range(500):
        if not set(threading.enumerate()) - before:
            break
        await anyio.sleep(0.01)
    assert not set(threading.enumerate()) - before
    store = await Store.open(path, clock=clock)
    await store.accept(said("hi"))
    await store.aclose()


async def test_readers_cannot_write(path: Path) -> None:
    database = Database(path)
    await database.open()

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM inbox")

    with pytest.raises(StoreError):
        await database.read(write)
    await database.close()
