"""The tables `usage` and `reservations`: what requests to providers came to, and may come to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from teaagentd.store import sessions, turns
from teaagentd.store.sessions import SessionRow
from teaagentd.store.turns import TurnRow
from teaagentd.store.values import Level, Limit, Payer, Reserving
from teaagentd.transcript import clean_text
from teaagentd.types import Attempt, Planned, Usage

UNRESOLVED = "Unresolved"
"""The error of a request that was under way when the process ended."""
_ADD = """
    INSERT INTO usage (turn, session, generation, provider, model, purpose, input_tokens,
        cached_tokens, output_tokens, reasoning_tokens, cache_write_tokens, cost, estimated, error,
        started_at, duration_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SET_ASIDE = """
    INSERT INTO reservations (turn, session, generation, provider, model, purpose, input_tokens,
        output_tokens, cost, started_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_TAKE = "DELETE FROM reservations WHERE id = ? RETURNING turn, session, generation"
_RESOLVE = f"""
    INSERT INTO usage (turn, session, generation, provider, model, purpose, input_tokens,
        output_tokens, cost, estimated, error, started_at, duration_ms)
    SELECT turn, session, generation, provider, model, purpose, input_tokens, output_tokens, cost,
        1, '{UNRESOLVED}', started_at, 0
    FROM reservations ORDER BY id
"""
_FORGET_ALL = "DELETE FROM reservations"
_SUMS = "coalesce(sum(cost), 0), coalesce(sum(input_tokens), 0) + coalesce(sum(output_tokens), 0)"
_WHERE = {
    "turn": "turn = :turn",
    "session": "session = :session AND generation = :generation",
    "day": "started_at >= :since AND started_at < :until",
    "month": "started_at >= :since AND started_at < :until",
}
_UNKNOWN = Usage()


Place: TypeAlias = tuple[int | None, int | None, int | None]
"""Whose a request is: turn, session and generation, by their numbers."""
NOBODY: Place = (None, None, None)


def of_turn(turn: TurnRow) -> Place:
    """The place of what a turn asked for."""
    return turn.number, turn.session.id, turn.generation


def of_session(session: SessionRow | None) -> Place:
    """The place of what was asked for beside the turns of a session."""
    return NOBODY if session is None else (None, session.id, session.generation)


def book(
    connection: sqlite3.Connection, attempts: Iterable[Attempt], place: Place = NOBODY
) -> None:
    """Book `attempts` to `place`, or to whom they were set aside for. What was booked before
    with its reservation is not booked again."""
    for reservation, group in groupby(attempts, key=lambda attempt: attempt.reservation):
        where = place
        if reservation is not None:
            taken = connection.execute(_TAKE, (reservation,)).fetchone()
            if taken is None:
                continue
            where = taken
        for attempt in group:
            _add(connection, attempt, where)


def reserve(
    connection: sqlite3.Connection,
    planned: Planned,
    ended: Sequence[Attempt],
    payer: Payer,
    limits: Sequence[Limit],
) -> Reserving:
    """Book `ended`, then set aside what `planned` may cost, unless one of `limits` forbids it. A
    request that may pass one is let through alone, so that all together pass it by one request."""
    place = _place(connection, payer)
    book(connection, ended, place)
    levels = tuple(_level(connection, limit, place) for limit in limits)
    for level in levels:
        limit = level.limit
        least, most = _asked(planned, limit)
        if not most:
            continue
        if level.spent >= limit.most or (not level.held and level.spent + least > limit.most):
            return Reserving(id=None, levels=levels, refused=level)
        if level.held and level.spent + level.held + most > limit.most:
            return Reserving(id=None, levels=levels)
    cursor = connection.execute(
        _SET_ASIDE,
        (
            *place,
            clean_text(planned.provider),
            clean_text(planned.model),
            clean_text(planned.purpose),
            planned.input_tokens,
            planned.output_tokens,
            planned.cost,
            planned.started_at,
        ),
    )
    return Reserving(id=cursor.lastrowid, levels=levels)


def levels(
    connection: sqlite3.Connection, limits: Sequence[Limit], payer: Payer
) -> tuple[Level, ...]:
    """How far each of `limits` is used up."""
    place = _place(connection, payer)
    return tuple(_level(connection, limit, place) for limit in limits)


def resolve(connection: sqlite3.Connection) -> int:
    """Book what was set aside by a process that is gone as spent. Returns how many requests."""
    connection.execute(_RESOLVE)
    return connection.execute(_FORGET_ALL).rowcount


def _place(connection: sqlite3.Connection, payer: Payer) -> Place:
    found = turns.find(connection, payer.turn_id) if payer.turn_id is not None else None
    if found is not None:
        return of_turn(found[0])
    session = sessions.find(connection, payer.key) if payer.key is not None else None
    return of_session(session)


def _asked(planned: Planned, limit: Limit) -> tuple[int, int]:
    """What the request takes of a limit at least, and at most. An unknown cost counts as none:
    whether it is let through is decided before."""
    if limit.unit == "tokens":
        return planned.input_tokens, planned.input_tokens + planned.output_tokens
    return planned.input_cost or 0, planned.cost or 0


def _level(connection: sqlite3.Connection, limit: Limit, place: Place) -> Level:
    turn, session, generation = place
    values = {
        "turn": turn,
        "session": session,
        "generation": generation,
        "since": limit.since_ms,
        "until": limit.until_ms,
    }
    spent, held = (
        connection.execute(
            f"SELECT {_SUMS} FROM {table} WHERE {_WHERE[limit.scope]}", values
        ).fetchone()[limit.unit == "tokens"]
        for table in ("usage", "reservations")
    )
    return Level(limit=limit, spent=spent, held=held)


def _add(connection: sqlite3.Connection, attempt: Attempt, place: Place) -> None:
    used = attempt.usage or _UNKNOWN
    connection.execute(
        _ADD,
        (
            *place,
            clean_text(attempt.provider),
            clean_text(attempt.model),
            clean_text(attempt.purpose),
            used.input_tokens,
            used.cached_tokens,
            used.output_tokens,
            used.reasoning_tokens,
            used.cache_write_tokens,
            attempt.cost,
            attempt.estimated,
            None if attempt.error is None else clean_text(attempt.error),
            attempt.started_at,
            attempt.duration_ms,
        ),
    )
