"""What an operator looks at: the queues, entry by entry, and the words in transcripts."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from teaagentd.store import transcripts
from teaagentd.store.codec import load_attachments
from teaagentd.store.outbox import DROPPED
from teaagentd.store.values import Found, InboxEntry, OutboxEntry
from teaagentd.types import Address, SessionKey

EXCERPT = 1000
"""Characters of a text in a list of queue entries."""
_INBOX = f"""
    SELECT i.id, s.key, i.state, i.channel, i.chat_id, i.sender_id, i.accepted_at,
        substr(i.content, 1, {EXCERPT}), length(i.content)
    FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.state = ? AND i.id < ? ORDER BY i.id DESC LIMIT ?
"""
_OUTBOX = f"""
    SELECT o.id, s.key, o.state, o.reason, o.channel, o.chat_id, o.created_at,
        (SELECT count(*) FROM parts p WHERE p.outbox = o.id),
        (SELECT count(*) FROM parts p WHERE p.outbox = o.id AND p.state = 'sent'),
        substr(o.content, 1, {EXCERPT}), length(o.content)
    FROM outbox o JOIN sessions s ON s.id = o.session
    WHERE o.state = ? AND (o.reason IS NULL OR o.reason <> ?) AND o.id < ?
    ORDER BY o.id DESC LIMIT ?
"""
_NEWEST = "SELECT coalesce(max(id), 0) FROM messages"
_STRETCH = """
    SELECT m.id, s.key, m.created_at, m.content FROM messages m JOIN sessions s ON s.id = m.session
    WHERE m.id <= ? AND m.id > ? AND m.position >= 0 AND s.listed = 1 ORDER BY m.id DESC
"""
_FILES = tuple(
    f"SELECT attachments FROM {table} WHERE attachments IS NOT NULL"
    for table in ("inbox", "messages")
)
STRETCH = 20_000
"""Messages that one look reads, so that none takes long."""
STRETCH_CHARACTERS = 20_000_000
"""The same, of their texts."""


def named_files(connection: sqlite3.Connection) -> frozenset[str]:
    """The paths of the files that messages name, those that wait and those that were answered."""
    found: set[str] = set()
    for statement in _FILES:
        for (text,) in connection.execute(statement):
            found.update(one.path for one in load_attachments(text))
    return frozenset(found)


def inbox_entries(
    connection: sqlite3.Connection, *, limit: int, before: int
) -> tuple[InboxEntry, ...]:
    """What waits and what was set aside, the newest first, with ids below `before`."""
    rows: list[tuple[int, str, str, str, str, str | None, int, str, int]] = []
    for state in ("pending", "dead"):
        rows += connection.execute(_INBOX, (state, before, limit)).fetchall()
    return tuple(
        InboxEntry(
            id=row[0],
            key=SessionKey.parse(row[1]),
            state=row[2],  # type: ignore[arg-type]  # as the statement has it
            address=Address(channel=row[3], chat_id=row[4]),
            sender_id=row[5],
            accepted_at=row[6],
            content=row[7],
            characters=row[8],
        )
        for row in sorted(rows, reverse=True)[:limit]
    )


def outbox_entries(
    connection: sqlite3.Connection, *, limit: int, before: int
) -> tuple[OutboxEntry, ...]:
    """What waits for its channel and what was given up, the newest first, with ids below
    `before`."""
    rows: list[tuple[int, str, str, str | None, str, str, int, int, int, str, int]] = []
    for state in ("pending", "dead"):
        rows += connection.execute(_OUTBOX, (state, DROPPED, before, limit)).fetchall()
    return tuple(
        OutboxEntry(
            id=row[0],
            key=SessionKey.parse(row[1]),
            state=row[2],  # type: ignore[arg-type]  # as the statement has it
            reason=row[3],
            address=Address(channel=row[4], chat_id=row[5]),
            created_at=row[6],
            parts=row[7],
            sent=row[8],
            content=row[9],
            characters=row[10],
        )
        for row in sorted(rows, key=lambda row: row[0], reverse=True)[:limit]
    )


def search(
    connection: sqlite3.Connection, text: str, *, limit: int, before: int | None
) -> tuple[Sequence[Found], int | None]:
    """Messages that hold `text`, letters alike in both cases, the newest first, with ids below
    `before`; and where to go on, None at the end. What one look reads and gives is bounded."""
    (newest,) = connection.execute(_NEWEST).fetchone()
    last = newest if before is None else min(before - 1, newest)
    try:
        return _look(connection, text.casefold(), limit, last)
    except sqlite3.OperationalError:
        with transcripts.broken_text_read(connection):
            return _look(connection, text.casefold(), limit, last)


def _look(
    connection: sqlite3.Connection, wanted: str, limit: int, last: int
) -> tuple[Sequence[Found], int | None]:
    first = max(last - STRETCH, 0)
    found: list[Found] = []
    read = given = 0
    for row_id, key, created_at, content in connection.execute(_STRETCH, (last, first)):
        read += len(content)
        if wanted in content.casefold():
            message = transcripts.by_id(connection, row_id)
            found.append(Found(key=SessionKey.parse(key), message=message, created_at=created_at))
            given += len(content)
        full = len(found) == limit or given >= transcripts.PAGE_CHARACTERS
        if full or read >= STRETCH_CHARACTERS:
            return found, row_id
    return found, first + 1 if first else None
