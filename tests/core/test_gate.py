"""The gate is fair, never over its cap, and a turn that waits holds no slot."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teaagentd.core.gate import Gate, Slot
from teaagentd.errors import DirectTurnDeadlock, TooManyParked
from teaagentd.wait_graph import WaitGraph

pytestmark = pytest.mark.anyio


def slot_of(gate: Gate, trace: list[str] | None = None) -> Slot:
    seen = trace if trace is not None else []
    return Slot(gate, on_pause=lambda: seen.append("pause"), on_resume=lambda: seen.append("go"))


async def test_waiters_are_served_first_come_first_served() -> None:
    gate = Gate(1)
    await gate.acquire()
    order: list[int] = []

    async def wait(number: int) -> None:
        await gate.acquire()
        order.append(number)
        gate.release()

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
        gate.release()
    assert order == [0, 1, 2, 3, 4]
    assert gate.held == 0


async def test_a_free_slot_is_not_taken_past_someone_who_waits() -> None:
    gate = Gate(1)
    await gate.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(gate.acquire)
        await anyio.wait_all_tasks_blocked()
        gate.release()
        assert not gate.try_acquire()
    assert gate.held == 1


async def test_a_cancelled_waiter_leaves_no_trace_even_when_just_admitted() -> None:
    gate = Gate(1)
    await gate.acquire()

    async def work() -> None:
        await gate.acquire()
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            gate.release()

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        gate.release()  # admits the waiter, which is cancelled before it runs
        group.cancel_scope.cancel()
    assert gate.held == 0
    assert gate.waiting == 0
    assert gate.try_acquire()


async def test_who_comes_back_from_a_wait_goes_before_who_has_not_begun() -> None:
    gate = Gate(1)
    await gate.acquire()
    order: list[str] = []

    async def wait(name: str, returning: bool) -> None:
        await gate.acquire(returning=returning)
        order.append(name)
        gate.release()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "new", False)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(wait, "returning", True)
        await anyio.wait_all_tasks_blocked()
        gate.release()
    assert order == ["returning", "new"]


async def test_the_slot_is_given_back_only_when_every_open_call_waits() -> None:
    gate = Gate(1)
    trace: list[str] = []
    slot = slot_of(gate, trace)
    await slot.acquire()
    slot.call_opened()
    slot.call_opened()
    async with slot.waiting():
        assert gate.held == 1
        slot.call_closed()
        assert gate.held == 0, "the only open call waits"
        assert trace == ["pause"]
    assert gate.held == 1
    assert trace == ["pause", "go"]
    slot.release()
    assert gate.held == 0
    assert gate.parked == 0


async def test_two_waits_that_end_together_take_one_slot() -> None:
    gate = Gate(1)
    slot = slot_of(gate)
    await slot.acquire()
    slot.call_opened()
    slot.call_opened()
    over = anyio.Event()

    async def call() -> None:
        async with slot.waiting():
            await over.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert gate.held == 0
        over.set()
    assert gate.held == 1


async def test_parked_turns_are_bounded() -> None:
    gate = Gate(2, max_parked=1)
    first, second = slot_of(gate), slot_of(gate)
    await first.acquire()
    await second.acquire()
    async with first.waiting():
        with pytest.raises(TooManyParked):
            async with second.waiting():
                pytest.fail("it was let in")
        assert gate.held == 1
    assert gate.held == 2


async def test_a_parked_turn_that_is_stopped_leaves_the_books_even() -> None:
    gate = Gate(1)
    slot = slot_of(gate)
    await slot.acquire()
    with anyio.CancelScope() as scope:
        async with slot.waiting():
            scope.cancel()
            await anyio.sleep_forever()
    slot.release()
    assert (gate.held, gate.parked, gate.waiting) == (0, 0, 0)


async def test_a_larger_cap_admits_at_once_a_smaller_one_as_turns_end() -> None:
    gate = Gate(1)
    await gate.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(gate.acquire)
        await anyio.wait_all_tasks_blocked()
        gate.resize(2)
    assert gate.held == 2
    gate.resize(1)
    gate.release()
    assert not gate.try_acquire()


def test_a_ring_of_waits_is_refused_and_named() -> None:
    graph = WaitGraph()
    with graph.waiting("a", "b"), graph.waiting("b", "c"):
        with pytest.raises(DirectTurnDeadlock) as caught, graph.waiting("c", "a"):
            pytest.fail("it was let in")
        assert caught.value.ring == ("c", "a", "b", "c")
    with graph.waiting("c", "a"):
        pass


def test_waiting_for_oneself_is_a_ring_of_one() -> None:
    graph = WaitGraph()
    with pytest.raises(DirectTurnDeadlock), graph.waiting("a", "a"):
        pytest.fail("it was let in")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14))
def test_no_order_of_waits_ever_closes_a_ring(edges: list[tuple[int, int]]) -> None:
    """Against a plain reachability check over the edges that were let in."""
    graph = WaitGraph()
    standing: list[tuple[int, int]] = []
    held_open = []
    for waiter, target in edges:
        reach, frontier = {target}, [target]
        while frontier:
            node = frontier.pop()
            fresh = {b for a, b in standing if a == node} - reach
            reach |= fresh
            frontier.extend(fresh)
        held = graph.waiting(str(waiter), str(target))
        if waiter in reach:
            with pytest.raises(DirectTurnDeadlock):
                held.__enter__()
        else:
            held.__enter__()
            held_open.append(held)
            standing.append((waiter, target))
