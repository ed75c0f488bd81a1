"""Ids that are given once: a husk without a word stays where the newest row of a table is deleted.

SQLite gives the highest id in use plus one. An id that is given again would be taken for the old
row by whoever remembers that: a client for the last reply that it saw, a channel for the key of a
part, a send that was on its way when its text was deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

KEY = "deleted"
"""Of the session that husks stand in. No key of a session is without a colon, so none is this."""
_SESSION = """
    INSERT INTO sessions (key, listed, created_at, active_at) VALUES (?, 0, 0, 0)
    ON CONFLICT (key) DO UPDATE SET listed = 0 RETURNING id
"""
_NEWEST = {
    "inbox": "SELECT max(id), 0, accepted_at FROM inbox",
    "outbox": "SELECT max(id), 0, created_at FROM outbox",
    "messages": "SELECT max(id), turn, created_at FROM messages",
}
_ADD = {
    "inbox": """
        INSERT INTO inbox (id, session, kind, channel, chat_id, content, state, accepted_at)
        VALUES (:id, :session, 'command', '', '', '', 'done', :at)
    """,
    "outbox": """
        INSERT INTO outbox (id, session, channel, chat_id, kind, content, message_ids, state,
            created_at)
        VALUES (:id, :session, '', '', 'notice', '', '[]', 'sent', :at)
    """,
    "messages": """
        INSERT INTO messages (id, session, turn, place, position, role, content, created_at)
        VALUES (:id, :session, :turn, :id, 0, 'user', '', :at)
    """,
}


@contextmanager
def ids_kept(connection: sqlite3.Connection) -> Iterator[None]:
    """What is deleted within leaves no id of `inbox`, `outbox` or `messages` to be given again."""
    newest = {table: connection.execute(sql).fetchone() for table, sql in _NEWEST.items()}
    yield
    for table, (row_id, turn, at) in newest.items():
        (left,) = connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
        if row_id is not None and left < row_id:
            (session,) = connection.execute(_SESSION, (KEY,)).fetchone()
            connection.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
            where = {"id": row_id, "session": session, "turn": turn, "at": at}
            connection.execute(_ADD[table], where)
