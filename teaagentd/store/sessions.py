"""The table `sessions`: one row for each key, with its generation and the reach of its history."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from teaagentd.store.values import SessionRecord
from teaagentd.transcript import clean_text
from teaagentd.types import SessionKey

_FIND = "SELECT id, generation, live_from, listed FROM sessions WHERE key = ?"
_ADD = "INSERT INTO sessions (key, listed, created_at, active_at) VALUES (?, ?, ?, ?)"
_LIST = "UPDATE sessions SET listed = 1 WHERE id = ?"
_TOUCH = "UPDATE sessions SET active_at = ? WHERE id = ?"
_RENEW = """
    UPDATE sessions SET generation = generation + 1, live_from = max(live_from, (
        SELECT coalesce(max(place), 0) + 1 FROM messages WHERE session = sessions.id
    )) WHERE id = ?
"""
_CHOOSE = "UPDATE sessions SET model = ? WHERE id = ?"
_CHOOSE_FOR_ALL = "UPDATE store SET model = ?"
_FORGET_CHOICES = "UPDATE sessions SET model = NULL WHERE model IS NOT NULL"
_CHOSEN = "SELECT coalesce(model, (SELECT model FROM store)) FROM sessions WHERE id = ?"
_CHOSEN_FOR_ALL = "SELECT model FROM store"
_BEGIN_AT = "UPDATE sessions SET live_from = ? WHERE id = ?"
# The page is chosen first: what is counted is counted for its sessions alone.
_RECORDS = """
    SELECT s.id, s.key, s.generation, s.created_at, s.active_at,
        (SELECT count(*) FROM messages m WHERE m.session = s.id AND m.place >= s.live_from
            AND m.position >= 0),
        (SELECT count(*) FROM inbox i WHERE i.session = s.id AND i.state = 'pending'),
        (SELECT t.id FROM turns t WHERE t.session = s.id AND t.state = 'running')
    FROM ({page} ORDER BY {order} LIMIT :limit) s ORDER BY {order}
"""
_LATEST_FIRST = "active_at DESC, id DESC"
_NEWEST = _RECORDS.format(page="SELECT * FROM sessions WHERE listed = 1", order=_LATEST_FIRST)
_AS_MADE = _RECORDS.format(
    page="SELECT * FROM sessions WHERE listed = 1 AND id > :after", order="id"
)
_OLDER = _RECORDS.format(
    order=_LATEST_FIRST,
    page="""
        SELECT * FROM sessions WHERE listed = 1 AND (active_at, id) < (
            SELECT active_at, id FROM sessions WHERE key = :before
        )
    """,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRow:
    """A session as a transaction finds it."""

    id: int
    generation: int
    live_from: int
    """Messages from this place on are the live history."""


def key_text(key: SessionKey) -> str:
    """The key as the column holds it: exact, case and all."""
    return clean_text(str(key))


def find(connection: sqlite3.Connection, key: SessionKey) -> SessionRow | None:
    row = connection.execute(_FIND, (key_text(key),)).fetchone()
    return None if row is None else SessionRow(id=row[0], generation=row[1], live_from=row[2])


def ensure(
    connection: sqlite3.Connection, key: SessionKey, now: int, *, listed: bool
) -> SessionRow:
    """The session of `key`, made on first need. `listed`: it shows in the list of sessions from
    now on, which those of commands and ephemeral turns alone do not."""
    text = key_text(key)
    row = connection.execute(_FIND, (text,)).fetchone()
    if row is None:
        cursor = connection.execute(_ADD, (text, int(listed), now, now))
        assert cursor.lastrowid is not None
        return SessionRow(id=cursor.lastrowid, generation=1, live_from=0)
    if listed and not row[3]:
        connection.execute(_LIST, (row[0],))
    return SessionRow(id=row[0], generation=row[1], live_from=row[2])


def renew(connection: sqlite3.Connection, session: int) -> None:
    """Begin a new generation: what is in the transcript stays, and is no longer its history."""
    connection.execute(_RENEW, (session,))


def begin_history_at(connection: sqlite3.Connection, session: int, place: int) -> None:
    """What stands before `place` stays in the transcript and is no longer the live history."""
    connection.execute(_BEGIN_AT, (place, session))


def touch(connection: sqlite3.Connection, session: int, now: int) -> None:
    """Something begins in the session: it moves to the head of the list."""
    connection.execute(_TOUCH, (now, session))


def choose(connection: sqlite3.Connection, session: int | None, model: str | None) -> None:
    """Have `model` asked first in a session, or in all of them, whatever was chosen there; None
    takes the choice back."""
    if session is not None:
        connection.execute(_CHOOSE, (model, session))
        return
    connection.execute(_CHOOSE_FOR_ALL, (model,))
    connection.execute(_FORGET_CHOICES)


def chosen(connection: sqlite3.Connection, session: int | None) -> str | None:
    """The model that is asked first in a session, or in those that have chosen none."""
    if session is not None:
        (model,) = connection.execute(_CHOSEN, (session,)).fetchone()
    else:
        (model,) = connection.execute(_CHOSEN_FOR_ALL).fetchone()
    return None if model is None else str(model)


def records(
    connection: sqlite3.Connection,
    *,
    limit: int,
    before: SessionKey | None,
    after: int | None = None,
) -> tuple[SessionRecord, ...]:
    """Listed sessions, the latest active first; `before` is the last one of an earlier page. With
    `after` those with higher numbers, in the order they were made in, which does not change."""
    if after is not None:
        rows = connection.execute(_AS_MADE, {"limit": limit, "after": after})
    elif before is None:
        rows = connection.execute(_NEWEST, {"limit": limit})
    else:
        rows = connection.execute(_OLDER, {"limit": limit, "before": key_text(before)})
    return tuple(
        SessionRecord(
            number=number,
            key=SessionKey.parse(key),
            generation=generation,
            created_at=created_at,
            active_at=active_at,
            messages=messages,
            pending=pending,
            running_turn_id=turn_id,
        )
        for number, key, generation, created_at, active_at, messages, pending, turn_id in rows
    )
