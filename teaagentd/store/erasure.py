"""Erasing what is known of one person or chat, also where others took part."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from teaagentd.errors import StoreError
from teaagentd.store import removal, sessions
from teaagentd.store.husks import ids_kept
from teaagentd.store.outbox import DROPPED
from teaagentd.store.values import Removed
from teaagentd.types import Address, SessionKey

ERASED = "[erased]"
_MATCH = {
    "sender": "i.sender_id IS :sender AND (:channel IS NULL OR i.channel = :channel)",
    "chat": "i.channel = :channel AND i.chat_id = :chat",
}
_SESSIONS = """
    SELECT i.session, sum(NOT ({match})) FROM inbox i
    WHERE i.session IN (SELECT i.session FROM inbox i WHERE {match})
    GROUP BY i.session
"""
_ROWS = "SELECT i.id FROM inbox i WHERE i.session = :session AND {match}"
_EXTERNAL = """
    SELECT i.channel, i.chat_id, i.external_id FROM inbox i
    WHERE i.session = :session AND i.external_id IS NOT NULL AND {match}
"""
_WAITING = "SELECT i.id FROM inbox i WHERE i.session = :session AND i.state = 'pending' AND {match}"
# What follows works on two temporary tables: the rows, and the turns that took them in.
_PREPARE = (
    "DROP TABLE IF EXISTS temp.gone_rows",
    "DROP TABLE IF EXISTS temp.gone_turns",
    "CREATE TEMP TABLE gone_rows (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE gone_turns (number INTEGER PRIMARY KEY)",
)
_TURNS = """
    INSERT OR IGNORE INTO temp.gone_turns
    SELECT turn FROM inbox WHERE turn IS NOT NULL AND id IN (SELECT id FROM temp.gone_rows)
"""
_MESSAGES = """
    DELETE FROM messages WHERE session = :session AND (position = -1 OR (
        turn IN (SELECT number FROM temp.gone_turns)
        AND (inbox IS NULL OR inbox IN (SELECT id FROM temp.gone_rows))
    ))
"""
_TEXTS = """
    SELECT id FROM outbox WHERE session = :session AND (
        turn IN (SELECT number FROM temp.gone_turns)
        OR id IN (SELECT answer FROM inbox WHERE id IN (SELECT id FROM temp.gone_rows))
    )
"""
_BLANK_TEXTS = f"UPDATE outbox SET content = '{ERASED}' WHERE id IN ({_TEXTS})"
_UNSENT = f"""
    UPDATE outbox SET state = 'dead', reason = '{DROPPED}', settled_at = :now
    WHERE state IN ('pending', 'dead') AND id IN ({_TEXTS})
"""
_PARTS = f"DELETE FROM parts WHERE outbox IN ({_TEXTS})"
_CALLS = "DELETE FROM calls WHERE turn IN (SELECT number FROM temp.gone_turns)"
_ERRORS = """
    UPDATE usage SET error = 'erased'
    WHERE error IS NOT NULL AND turn IN (SELECT number FROM temp.gone_turns)
"""
_INBOX = "DELETE FROM inbox WHERE id IN (SELECT id FROM temp.gone_rows)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Whose traces go: those of a `sender` (on one `channel`, or all), of one chat, or all of one
    session."""

    sender: str | None = None
    channel: str | None = None
    chat: Address | None = None
    session: SessionKey | None = None


def erase(connection: sqlite3.Connection, target: Target, *, only_count: bool, now: int) -> Removed:
    """A session that is the target's alone is deleted. In one that others share go the target's
    messages, all that was said in the turns that took them in but the words of the others, and
    the summaries. Raises `StoreError` if nothing is known, or if a turn is at work there."""
    if target.session is not None:
        return removal.delete_session(connection, target.session, only_count=only_count, now=now)
    chat = target.chat
    match = _MATCH["sender" if chat is None else "chat"]
    where: dict[str, str | int | None] = {
        "sender": target.sender,
        "channel": target.channel if chat is None else chat.channel,
        "chat": None if chat is None else chat.chat_id,
        "now": now,
    }
    own = _own_session(connection, chat)
    found = connection.execute(_SESSIONS.format(match=match), where).fetchall()
    removed = [
        removal.delete(connection, session, only_count=only_count, now=now)
        if not others or session == own
        else _in_part(connection, {**where, "session": session}, match, only_count=only_count)
        for session, others in found
    ]
    if own is not None and own not in {session for session, _ in found}:
        removed.append(removal.delete(connection, own, only_count=only_count, now=now))
    if not removed:
        raise StoreError("nothing is known of them; nothing was changed")
    return removal.sum_of(removed)


def _own_session(connection: sqlite3.Connection, chat: Address | None) -> int | None:
    if chat is None:
        return None
    key = SessionKey(channel=chat.channel, chat_id=chat.chat_id)
    session = sessions.find(connection, key)
    return None if session is None else session.id


def _in_part(
    connection: sqlite3.Connection,
    where: dict[str, str | int | None],
    match: str,
    *,
    only_count: bool,
) -> Removed:
    session, now = where["session"], where["now"]
    assert isinstance(session, int)
    assert isinstance(now, int)
    key = removal.free_key(connection, session)
    waiting = connection.execute(_WAITING.format(match=match), where).fetchall()
    for statement in _PREPARE:
        connection.execute(statement)
    connection.execute(f"INSERT INTO temp.gone_rows {_ROWS.format(match=match)}", where)
    connection.execute(_TURNS)
    (rows,) = connection.execute("SELECT count(*) FROM temp.gone_rows").fetchone()
    texts = len(connection.execute(_TEXTS, where).fetchall())
    messages = connection.execute(_MESSAGES.replace("DELETE", "SELECT count(*)", 1), where)
    (count,) = messages.fetchone()
    if not only_count:
        externals = connection.execute(_EXTERNAL.format(match=match), where).fetchall()
        removal.remember(connection, externals, now)
        with ids_kept(connection):
            for statement in (_CALLS, _ERRORS):
                connection.execute(statement)
            for statement in (_MESSAGES, _PARTS, _UNSENT, _BLANK_TEXTS):
                connection.execute(statement, where)
            connection.execute(_INBOX)
    return Removed(
        messages=count,
        inbox=rows,
        outbox=texts,
        keys=(key,),
        waiting=removal.pending_of(key, waiting),
    )
