"""What a turn costs the database does not grow with what the database holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from teaagentd.store import admission, delivery, lifecycle, rounds
from teaagentd.store.admission import Order
from teaagentd.store.lifecycle import Intake
from teaagentd.store.opening import open_writer
from teaagentd.store.recent import KnownHistory
from teaagentd.store.values import Begun, Closed, NewTurn
from teaagentd.types import LLMMessage, Receipt, SessionKey, ToolCall
from tests.store.steps import answer, attempt, no_note, result, said

INTAKE = Intake(upto=None, budget_tokens=10_000, note=no_note)
PULL = frozenset({"api"})
CHAT = SessionKey(channel="mail", chat_id="ann")


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(path)) as connection:
        yield connection


def one_life(
    connection: sqlite3.Connection, name: str, known: KnownHistory | None = None
) -> KnownHistory:
    """Every commit point that a message can pass; the history that it began with."""
    key = CHAT
    message = said("hi", channel=key.channel, chat_id=key.chat_id, external_id=name)
    admission.accept(connection, message, max_pending=100, now=1)
    new = NewTurn(id=name, key=key, origin="bus")
    begun = lifecycle.begin(connection, new, INTAKE, known=known, pull=PULL, now=1)
    assert isinstance(begun, Begun)
    decision = LLMMessage(
        role="assistant", tool_calls=(ToolCall(id="a", name="tool", arguments={}),)
    )
    rounds.decide(connection, name, decision, notice="n", attempts=(), pull=PULL, now=1)
    rounds.start_call(connection, name, "a", now=1)
    rounds.finish_call(connection, name, result("a"), now=1)
    lifecycle.fold(connection, name, INTAKE, now=1)
    lifecycle.resume(connection, name, notice="n", failed="f", pull=PULL, now=1)
    closed = lifecycle.close_or_fold(
        connection, name, answer("x"), INTAKE, attempts=(attempt(),), pull=PULL, now=1
    )
    assert isinstance(closed, Closed)
    (outbound,) = closed.outbound
    delivery.freeze(connection, outbound.id, ["x"], now=1)
    delivery.start_part(connection, outbound.id, 0, idempotent=False, now=1)
    delivery.finish_part(connection, outbound.id, 0, Receipt(), now=1)
    order = Order(key=key, effect="stop", reply=str, closing="c", note=no_note)
    admission.command(connection, None, order, pull=PULL, now=1)
    return KnownHistory(turn_id=name, messages=begun.history)


def steps(connection: sqlite3.Connection, work: Callable[[], None]) -> int:
    """How many instructions of SQLite's machine `work` takes."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    connection.set_progress_handler(count, 1)
    work()
    connection.set_progress_handler(None, 1)
    return taken


def test_no_statement_of_a_turn_reads_through_a_table(connection: sqlite3.Connection) -> None:
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    one_life(connection, "u", known=one_life(connection, "t"))
    connection.set_trace_callback(None)
    assert len(set(statements)) > 30
    for sql in sorted(set(statements)):
        if sql.startswith("--"):
            continue
        for *_, plan in connection.execute(f"EXPLAIN QUERY PLAN {sql}"):
            searched = plan.startswith("SEARCH") or "SUBQUERY" in plan or "CO-ROUTINE" in plan
            bounded = plan in ("SCAN CONSTANT ROW", "SCAN store", "SCAN (subquery-1)")
            waiting = "INDEX inbox_pending" in plan
            assert searched or bounded or waiting, f"{plan}\n{sql}"


def test_a_turn_takes_the_same_work_beside_many_sessions(connection: sqlite3.Connection) -> None:
    one_life(connection, "warm")
    connection.execute("BEGIN")
    alone = steps(connection, lambda: one_life(connection, "alone"))
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    for number in range(2000):
        key = SessionKey(channel="api", chat_id=str(number))
        message = said("hi", chat_id=str(number), external_id="e")
        admission.accept(connection, message, max_pending=10, now=number)
        turn = NewTurn(id=f"turn {number}", key=key, origin="bus")
        lifecycle.begin(connection, turn, INTAKE, known=None, pull=PULL, now=number)
        if number % 2:
            lifecycle.close_or_fold(
                connection, turn.id, answer("x"), None, attempts=(attempt(),), pull=PULL, now=2
            )
    crowded = steps(connection, lambda: one_life(connection, "crowded"))
    connection.execute("ROLLBACK")
    assert crowded <= alone * 1.05
