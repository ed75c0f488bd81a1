"""Retention: what is older than it need be kept goes, in transactions that hold nobody up.

Not touched, however old: what waits, what a running turn works on, the newest message of all, dead
messages and letters, and what must stay countable (turns, usage). Of a deleted message's external
id a digest stays, so that it is known when it is sent again.
"""

from __future__ import annotations

import sqlite3

from teaagentd.store import removal
from teaagentd.store.husks import KEY, ids_kept

BATCH = 500
"""Rows of one transaction."""
EXPIRED = "[no longer kept]"
"""In place of a text that goes before the message that it answers."""

_SESSIONS = f"SELECT id FROM sessions WHERE id > ? AND key <> '{KEY}' ORDER BY id LIMIT 1"
# Whole turns go, so the history that is left begins with one.
_KEEP_FROM = """
    SELECT m.place FROM messages m JOIN turns t ON t.number = m.turn
    WHERE m.session = :session AND m.position >= 0
        AND (t.state = 'running' OR t.ended_at >= :before)
    ORDER BY m.place LIMIT 1
"""
_LAST_PLACE = "SELECT coalesce(max(place), 0) + 1 FROM messages WHERE session = :session"
_ANY = "SELECT 1 FROM messages WHERE session = :session AND place < :place LIMIT 1"
_BEGIN_AT = "UPDATE sessions SET live_from = max(live_from, :place) WHERE id = :session"
_MESSAGES = """
    DELETE FROM messages WHERE id IN (
        SELECT id FROM messages WHERE session = :session AND place < :place
        ORDER BY place, position LIMIT :batch
    )
"""
_FIRST_KEPT_TURN = """
    SELECT coalesce(min(number), (SELECT max(number) + 1 FROM turns), 0) FROM turns
    WHERE state = 'running' OR ended_at >= ?
"""
_CALLS = """
    DELETE FROM calls WHERE id IN (
        SELECT id FROM calls WHERE id < coalesce((
            SELECT id FROM calls WHERE turn >= :turn ORDER BY id LIMIT 1
        ), (SELECT max(id) + 1 FROM calls)) ORDER BY id LIMIT :batch
    )
"""
_OLD_ROWS = """
    SELECT i.id, i.channel, i.chat_id, i.external_id FROM inbox i
    WHERE i.id > :after AND i.accepted_at < :before AND i.state IN ('done', 'retried')
        AND i.id < (SELECT max(id) FROM inbox WHERE kind = 'message')
        AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.inbox = i.id)
        AND NOT EXISTS (SELECT 1 FROM inbox r WHERE r.retry_of = i.id)
    ORDER BY i.id LIMIT :batch
"""
_ROW = "DELETE FROM inbox WHERE id = ?"
_OLD_TEXTS = """
    SELECT o.id, EXISTS (SELECT 1 FROM inbox i WHERE i.answer = o.id) FROM outbox o
    WHERE o.id > :after AND o.settled_at < :before AND o.state IN ('sent', 'dead')
        AND (o.state <> 'dead' OR o.reason = 'dropped by the operator')
        AND o.content <> :expired
    ORDER BY o.id LIMIT :batch
"""
_OLD_REPLIES = """
    SELECT o.id, EXISTS (SELECT 1 FROM inbox i WHERE i.answer = o.id) FROM outbox o
    WHERE o.id > :after AND o.created_at < :before AND o.state = 'available'
        AND o.content <> :expired
    ORDER BY o.id LIMIT :batch
"""
_PARTS = "DELETE FROM parts WHERE outbox = ?"
_TEXT = "DELETE FROM outbox WHERE id = ?"
_EXPIRE = "UPDATE outbox SET content = ? WHERE id = ?"
_FORGOTTEN = "DELETE FROM forgotten WHERE at < ?"
_NEWEST = "SELECT accepted_at FROM inbox ORDER BY id DESC LIMIT 1"
_SWEPT = "SELECT swept_at FROM store"
_SWEEP = "UPDATE store SET swept_at = ?"
REMEMBERED_MS = 2 * 366 * 86_400_000
"""How long the digests of deleted external ids are kept: no channel sends again after years."""


def next_session(connection: sqlite3.Connection, after: int) -> int | None:
    """The session that follows `after` in the order of their numbers."""
    row = connection.execute(_SESSIONS, (after,)).fetchone()
    return None if row is None else int(row[0])


def transcripts(connection: sqlite3.Connection, session: int, before: int) -> bool:
    """Delete some of a session's messages from turns that ended before `before`; whether there are
    more. The live history then begins behind them, summaries of them included."""
    where = {"session": session, "before": before, "batch": BATCH}
    row = connection.execute(_KEEP_FROM, where).fetchone()
    (place,) = row or connection.execute(_LAST_PLACE, where).fetchone()
    where["place"] = place
    if connection.execute(_ANY, where).fetchone() is None:
        return False
    connection.execute(_BEGIN_AT, where)
    with ids_kept(connection):
        return connection.execute(_MESSAGES, where).rowcount == BATCH


def calls(connection: sqlite3.Connection, before: int) -> bool:
    """The same for what is known of the calls of such turns."""
    (turn,) = connection.execute(_FIRST_KEPT_TURN, (before,)).fetchone()
    return connection.execute(_CALLS, {"turn": turn, "batch": BATCH}).rowcount == BATCH


def rows(connection: sqlite3.Connection, before: int, after: int, now: int) -> int | None:
    """Delete some accepted messages that were answered, are older, and stand in no transcript any
    more; the last one looked at, None at the end."""
    where = {"before": before, "after": after, "batch": BATCH}
    found = connection.execute(_OLD_ROWS, where).fetchall()
    externals = [(channel, chat, known) for _, channel, chat, known in found if known is not None]
    removal.remember(connection, externals, now)
    for row_id, *_ in found:
        connection.execute(_ROW, (row_id,))
    connection.execute(_FORGOTTEN, (now - REMEMBERED_MS,))
    return found[-1][0] if len(found) == BATCH else None


def texts(connection: sqlite3.Connection, before: int, after: int, *, read: bool) -> int | None:
    """Delete some texts that were delivered before `before`, or, with `read`, those that are
    there to be read and are older; the last one looked at, None at the end."""
    where = {"before": before, "after": after, "batch": BATCH, "expired": EXPIRED}
    found = connection.execute(_OLD_REPLIES if read else _OLD_TEXTS, where).fetchall()
    with ids_kept(connection):
        for row_id, answers in found:
            connection.execute(_PARTS, (row_id,))
            if answers:
                connection.execute(_EXPIRE, (EXPIRED, row_id))
            else:
                connection.execute(_TEXT, (row_id,))
    return found[-1][0] if len(found) == BATCH else None


def newest(connection: sqlite3.Connection) -> int:
    """When the newest message was accepted; 0 before the first one."""
    row = connection.execute(_NEWEST).fetchone()
    return 0 if row is None else int(row[0])


def swept(connection: sqlite3.Connection) -> int | None:
    """When old rows were looked for last; None before the first time."""
    (found,) = connection.execute(_SWEPT).fetchone()
    return None if found is None else int(found)


def sweep(connection: sqlite3.Connection, now: int) -> None:
    """Note that old rows are looked for now."""
    connection.execute(_SWEEP, (now,))
