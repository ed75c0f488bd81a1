"""What an operator takes away: entries of the queues, whole sessions, what is known of a person.

Deleted content is overwritten in the file (`PRAGMA secure_delete`). What stays is what must be
countable, turns and usage, without a word of theirs, and the digests by which a message that is
sent again is known.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

from teaagentd.errors import StoreError
from teaagentd.store import inbox, outbox, sessions, turns
from teaagentd.store.husks import ids_kept
from teaagentd.store.outbox import DROPPED
from teaagentd.store.values import PendingKey, Removed
from teaagentd.types import Address, OutboundMessage, SessionKey

_ROW = """
    SELECT i.state, i.session, i.channel, i.chat_id, s.key FROM inbox i
    JOIN sessions s ON s.id = i.session WHERE i.id = ?
"""
_DONE = "UPDATE inbox SET state = 'done' WHERE id = ?"
_LETTER = "SELECT state, channel, reason FROM outbox WHERE id = ?"
_RETRY = """
    UPDATE outbox SET state = 'pending', reason = NULL, settled_at = NULL, not_before = 0
    WHERE id = ?
"""
_PARTS_AGAIN = """
    UPDATE parts SET state = 'pending', repeats = max(repeats, 1)
    WHERE outbox = ? AND state = 'sending'
"""
_DROP = "UPDATE outbox SET state = 'dead', reason = ?, settled_at = ? WHERE id = ?"

_COUNTS = """
    SELECT (SELECT count(*) FROM messages WHERE session = :session),
        (SELECT count(*) FROM inbox WHERE session = :session),
        (SELECT count(*) FROM outbox WHERE session = :session)
"""
_WAITING = "SELECT id FROM inbox WHERE session = ? AND state = 'pending'"
_REMEMBER = "INSERT OR IGNORE INTO forgotten (digest, at) VALUES (?, ?)"
_EXTERNAL = """
    SELECT channel, chat_id, external_id FROM inbox
    WHERE session = ? AND external_id IS NOT NULL
"""
_EMPTY_SESSION = (
    "UPDATE usage SET error = 'erased' WHERE error IS NOT NULL"
    " AND turn IN (SELECT number FROM turns WHERE session = ?)",
    "DELETE FROM calls WHERE turn IN (SELECT number FROM turns WHERE session = ?)",
    "DELETE FROM messages WHERE session = ?",
    "DELETE FROM parts WHERE outbox IN (SELECT id FROM outbox WHERE session = ?)",
    "DELETE FROM inbox WHERE session = ?",
    "DELETE FROM outbox WHERE session = ?",
    "UPDATE turns SET deliver_channel = NULL, deliver_chat = NULL WHERE session = ?",
)
# The owner is told of some causes with the key of the session.
_ALERTS = "DELETE FROM alerts WHERE subject = :key OR instr(text, :key) > 0"
# No key of a session is without a colon, so none can be this one.
_HUSK = "UPDATE sessions SET key = ?, listed = 0 WHERE id = ?"


def drop_row(
    connection: sqlite3.Connection, row_id: int, *, text: str, pull: frozenset[str], now: int
) -> tuple[SessionKey, tuple[OutboundMessage, ...]]:
    """A message that waits is answered with `text` and nothing else; a dead one, which was
    answered when it was set aside, is no longer listed. Raises `StoreError` for any other."""
    row = connection.execute(_ROW, (row_id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no message {row_id}")
    state, session, channel, chat_id, key_text = row
    key = SessionKey.parse(key_text)
    if state == "claimed":
        raise StoreError(
            f"message {row_id} is being answered; `teaagentd stop --session {key}` ends that"
        )
    if state not in ("pending", "dead"):
        raise StoreError(f"message {row_id} was answered already; there is nothing to drop")
    if state == "dead":
        connection.execute(_DONE, (row_id,))
        return key, ()
    said = outbox.add(
        connection,
        session=session,
        key=key,
        turn=None,
        address=Address(channel=channel, chat_id=chat_id),
        kind="final",
        content=text,
        answers=(row_id,),
        pull=channel in pull,
        now=now,
    )
    return key, (said,)


def retry_letter(connection: sqlite3.Connection, outbound: int) -> str:
    """Have a dead text delivered again, from its first part that is not known to have arrived; one
    whose outcome is unknown is marked as a possible repeat. Its channel. Raises `StoreError`."""
    state, channel, reason = _letter(connection, outbound)
    if state != "dead" or reason == DROPPED:
        what = reason if reason == DROPPED else f"{state}, not given up"
        raise StoreError(f"text {outbound} is {what}; nothing was changed")
    connection.execute(_RETRY, (outbound,))
    connection.execute(_PARTS_AGAIN, (outbound,))
    return channel


def drop_letter(connection: sqlite3.Connection, outbound: int, now: int) -> None:
    """A text that waits, or was given up, is not delivered and not listed. It stays readable in
    its session. Raises `StoreError`."""
    state, _, reason = _letter(connection, outbound)
    if state not in ("pending", "dead") or reason == DROPPED:
        raise StoreError(f"text {outbound} is {reason or state}; there is nothing to drop")
    connection.execute(_DROP, (DROPPED, now, outbound))


def _letter(connection: sqlite3.Connection, outbound: int) -> tuple[str, str, str | None]:
    row = connection.execute(_LETTER, (outbound,)).fetchone()
    if row is None:
        raise StoreError(f"there is no text {outbound}")
    state, channel, reason = row
    return state, channel, reason


def delete_session(
    connection: sqlite3.Connection, key: SessionKey, *, only_count: bool, now: int
) -> Removed:
    """Everything of a session. Raises `StoreError` for one that is unknown or at work."""
    session = sessions.find(connection, key)
    if session is None:
        raise StoreError(f"there is no session {key}")
    return delete(connection, session.id, only_count=only_count, now=now)


def delete(connection: sqlite3.Connection, session: int, *, only_count: bool, now: int) -> Removed:
    key = free_key(connection, session)
    messages, rows, letters = connection.execute(_COUNTS, {"session": session}).fetchone()
    pending = pending_of(key, connection.execute(_WAITING, (session,)).fetchall())
    if not only_count:
        remember(connection, connection.execute(_EXTERNAL, (session,)).fetchall(), now)
        with ids_kept(connection):
            for statement in _EMPTY_SESSION:
                connection.execute(statement, (session,))
        connection.execute(_ALERTS, {"key": sessions.key_text(key)})
        connection.execute(_HUSK, (f"deleted {session}", session))
    return Removed(
        sessions=1,
        messages=messages,
        inbox=rows,
        outbox=letters,
        keys=(key,),
        waiting=pending,
    )


def pending_of(key: SessionKey, rows: Iterable[tuple[int]]) -> tuple[PendingKey, ...]:
    """Rows of one session, if there are any."""
    ids = tuple(row_id for (row_id,) in rows)
    return (PendingKey(key=key, ids=ids),) if ids else ()


def remember(
    connection: sqlite3.Connection, externals: Sequence[tuple[str, str, str]], now: int
) -> None:
    """Know the external ids of deleted messages again: channel, chat and id of each."""
    for external in externals:
        connection.execute(_REMEMBER, (inbox.digest(*external), now))


def free_key(connection: sqlite3.Connection, session: int) -> SessionKey:
    """The session's key, if no turn is at work in it. Raises `StoreError`."""
    (text,) = connection.execute("SELECT key FROM sessions WHERE id = ?", (session,)).fetchone()
    if turns.running_in(connection, session) is not None:
        raise StoreError(
            f"{text} is at work; `teaagentd stop --session {text}` ends that. Nothing was deleted"
        )
    return SessionKey.parse(text)


def sum_of(parts: Sequence[Removed]) -> Removed:
    """Several deletions as one."""
    total = Removed()
    for part in parts:
        total = replace(
            total,
            sessions=total.sessions + part.sessions,
            messages=total.messages + part.messages,
            inbox=total.inbox + part.inbox,
            outbox=total.outbox + part.outbox,
            keys=(*total.keys, *part.keys),
            waiting=(*total.waiting, *part.waiting),
        )
    return total
