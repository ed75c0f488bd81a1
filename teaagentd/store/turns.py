"""The table `turns`: what runs, what ran, and the fence that keeps an ended turn from writing."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from teaagentd.errors import TurnEnded
from teaagentd.store.sessions import SessionRow
from teaagentd.store.values import NewTurn, RunningTurn, TurnRecord
from teaagentd.types import Address, SessionKey, TurnOrigin, TurnOutcome, Usage

_ADD = """
    INSERT INTO turns (id, session, generation, origin, parent, deliver_channel, deliver_chat,
        state, started_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, 'running', ?)
"""
_COLUMNS = """
    t.number, t.id, t.state, t.origin, t.generation, t.attempt, t.parked, t.deliver_channel,
    t.deliver_chat, s.id, s.generation, s.live_from, s.key
"""
_FIND = f"""
    SELECT {_COLUMNS} FROM turns t JOIN sessions s ON s.id = t.session WHERE t.id = ?
"""
_RUNNING_IN = f"""
    SELECT {_COLUMNS} FROM turns t JOIN sessions s ON s.id = t.session
    WHERE t.session = ? AND t.state = 'running'
"""
_END = "UPDATE turns SET state = 'done', outcome = ?, ended_at = ? WHERE number = ?"
_SET_ATTEMPT = "UPDATE turns SET attempt = ?, parked = 0 WHERE number = ?"
_PARK = "UPDATE turns SET parked = 1 WHERE number = ?"
_ALL_RUNNING = """
    SELECT t.id, s.key, t.origin, t.attempt, t.parked
    FROM turns t JOIN sessions s ON s.id = t.session
    WHERE t.state = 'running' ORDER BY t.number
"""
_RECORD = """
    SELECT t.id, s.key, t.origin, t.parent, t.outcome, t.attempt, t.parked, t.started_at,
        t.ended_at, count(u.id),
        count(u.input_tokens), sum(u.input_tokens), count(u.cached_tokens), sum(u.cached_tokens),
        count(u.output_tokens), sum(u.output_tokens),
        count(u.reasoning_tokens), sum(u.reasoning_tokens),
        count(u.cache_write_tokens), sum(u.cache_write_tokens),
        count(u.cost), sum(u.cost), max(u.estimated)
    FROM turns t JOIN sessions s ON s.id = t.session LEFT JOIN usage u ON u.turn = t.number
    WHERE t.id = ? GROUP BY t.number
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRow:
    """A turn as a transaction finds it, with its session."""

    number: int
    id: str
    origin: TurnOrigin
    generation: int
    attempt: int
    parked: bool
    deliver_to: Address | None
    session: SessionRow
    key: SessionKey

    @property
    def keeps_messages(self) -> bool:
        """An ephemeral turn leaves no trace in a transcript."""
        return self.origin != "ephemeral"


def add(connection: sqlite3.Connection, new: NewTurn, session: SessionRow, now: int) -> TurnRow:
    to = new.deliver_to
    cursor = connection.execute(
        _ADD,
        (
            new.id,
            session.id,
            session.generation,
            new.origin,
            new.parent_turn_id,
            to.channel if to else None,
            to.chat_id if to else None,
            now,
        ),
    )
    assert cursor.lastrowid is not None
    return TurnRow(
        number=cursor.lastrowid,
        id=new.id,
        origin=new.origin,
        generation=session.generation,
        attempt=1,
        parked=False,
        deliver_to=to,
        session=session,
        key=new.key,
    )


def find(connection: sqlite3.Connection, turn_id: str) -> tuple[TurnRow, bool] | None:
    """The turn, and whether it may still write: it runs, in its session's generation."""
    row = connection.execute(_FIND, (turn_id,)).fetchone()
    if row is None:
        return None
    return _row(row), row[2] == "running" and row[4] == row[10]


def fence(connection: sqlite3.Connection, turn_id: str) -> TurnRow:
    """The turn if it may still write. Raises `TurnEnded`."""
    found = find(connection, turn_id)
    if found is None or not found[1]:
        raise TurnEnded(turn_id)
    return found[0]


def running_in(connection: sqlite3.Connection, session: int) -> TurnRow | None:
    """The one running turn of a session."""
    row = connection.execute(_RUNNING_IN, (session,)).fetchone()
    return None if row is None else _row(row)


def end(connection: sqlite3.Connection, turn: TurnRow, outcome: TurnOutcome, now: int) -> None:
    connection.execute(_END, (outcome, now, turn.number))


def set_attempt(connection: sqlite3.Connection, turn: TurnRow, attempt: int) -> None:
    connection.execute(_SET_ATTEMPT, (attempt, turn.number))


def park(connection: sqlite3.Connection, turn: TurnRow) -> None:
    connection.execute(_PARK, (turn.number,))


def running(connection: sqlite3.Connection) -> tuple[RunningTurn, ...]:
    """Every running turn, in the order they began."""
    return tuple(
        RunningTurn(
            id=turn_id,
            key=SessionKey.parse(key),
            origin=origin,
            attempt=attempt,
            parked=bool(parked),
        )
        for turn_id, key, origin, attempt, parked in connection.execute(_ALL_RUNNING)
    )


def record(connection: sqlite3.Connection, turn_id: str) -> TurnRecord | None:
    row = connection.execute(_RECORD, (turn_id,)).fetchone()
    if row is None:
        return None
    requests = row[9]
    # A sum is known only if every member is.
    sums = [
        (total or 0) if known == requests else None
        for known, total in zip(row[10:22:2], row[11:22:2], strict=True)
    ]
    return TurnRecord(
        id=row[0],
        key=SessionKey.parse(row[1]),
        origin=row[2],
        parent_turn_id=row[3],
        outcome=row[4],
        attempt=row[5],
        parked=bool(row[6]),
        started_at=row[7],
        ended_at=row[8],
        requests=requests,
        usage=Usage(
            input_tokens=sums[0],
            cached_tokens=sums[1],
            output_tokens=sums[2],
            reasoning_tokens=sums[3],
            cache_write_tokens=sums[4],
        ),
        cost=sums[5],
        estimated=bool(row[22]),
    )


def _row(
    row: tuple[int, str, str, TurnOrigin, int, int, int, str, str, int, int, int, str],
) -> TurnRow:
    return TurnRow(
        number=row[0],
        id=row[1],
        origin=row[3],
        generation=row[4],
        attempt=row[5],
        parked=bool(row[6]),
        deliver_to=None if row[7] is None else Address(channel=row[7], chat_id=row[8]),
        session=SessionRow(id=row[9], generation=row[10], live_from=row[11]),
        key=SessionKey.parse(row[12]),
    )
