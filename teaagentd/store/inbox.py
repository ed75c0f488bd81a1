"""The table `inbox`: accepted messages and commands, from pending to answered."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

import orjson

from teaagentd.errors import StoreError
from teaagentd.store.codec import dump_attachments, load_attachments
from teaagentd.store.values import DeadRow, PendingKey
from teaagentd.types import Address, InboundMessage, InboxRow, SessionKey

_DUPLICATE = """
    SELECT i.id, i.content, i.sender_id, i.attachments, s.key
    FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.channel = ? AND i.chat_id = ? AND i.external_id = ?
"""
_FORGOTTEN = "SELECT 1 FROM forgotten WHERE digest = ?"
_COUNT_PENDING = "SELECT count(*) FROM (SELECT 1 FROM inbox WHERE state = 'pending' LIMIT ?)"
_ADD = """
    INSERT INTO inbox (session, kind, channel, chat_id, sender_id, external_id, content,
        attachments, state, retry_of, accepted_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COLUMNS = """
    i.id, i.channel, i.chat_id, i.sender_id, i.external_id, i.content, i.attachments,
    i.accepted_at, s.key
"""
_PENDING = f"""
    SELECT {_COLUMNS} FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.session = ? AND i.state = 'pending' AND i.id <= ? ORDER BY i.id
"""
_OPEN = f"""
    SELECT {_COLUMNS} FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.turn = ? AND i.answer IS NULL ORDER BY i.id
"""
_COUNT_SESSION = "SELECT count(*) FROM inbox WHERE session = ? AND state = 'pending'"
_CLAIM = "UPDATE inbox SET state = 'claimed', turn = ? WHERE id = ? AND state = 'pending'"
_CLAIMED = "SELECT id, channel, chat_id, answer FROM inbox WHERE turn = ? ORDER BY id"
_ANSWER = """
    UPDATE inbox SET answer = ?, state = iif(state = 'dead', 'dead', 'done')
    WHERE id = ? AND answer IS NULL
"""
_CONDEMN = "UPDATE inbox SET state = 'dead' WHERE turn = ? AND answer IS NULL"
_SET_ASIDE = "UPDATE inbox SET state = 'dead' WHERE id = ? AND state = 'pending'"
_PENDING_KEYS = """
    SELECT s.key, i.id FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.state = 'pending' ORDER BY i.id
"""
_LAST_ADDRESS = """
    SELECT channel, chat_id FROM inbox WHERE kind = 'message' AND retry_of IS NULL
    ORDER BY id DESC LIMIT 1
"""
_DEAD = """
    SELECT i.id, s.key, t.id, i.accepted_at, i.content
    FROM inbox i JOIN sessions s ON s.id = i.session LEFT JOIN turns t ON t.number = i.turn
    WHERE i.state = 'dead' ORDER BY i.id DESC LIMIT ?
"""
_RETRIED = "UPDATE inbox SET state = 'retried' WHERE id = ? AND state = 'dead'"
_RETRY_SOURCE = """
    SELECT i.session, i.channel, i.chat_id, i.sender_id, i.content, i.attachments, i.state, s.key,
        (SELECT r.id FROM inbox r WHERE r.retry_of = i.id)
    FROM inbox i JOIN sessions s ON s.id = i.session WHERE i.id = ?
"""
_DEPTH = "SELECT count(*), min(accepted_at) FROM inbox WHERE state = 'pending'"
_COUNT_DEAD = "SELECT count(*) FROM inbox WHERE state = 'dead'"
_EVERY = 2**62


def digest(channel: str, chat_id: str, external_id: str) -> bytes:
    """What is kept of a deleted message's external id, to know it again."""
    return hashlib.sha256(orjson.dumps((channel, chat_id, external_id))).digest()


def find_duplicate(
    connection: sqlite3.Connection, message: InboundMessage
) -> tuple[int, SessionKey, bool] | None:
    """The row accepted before under the external id of `message` and its session; the last
    value says whether its body is the same. Row 0 is one that was deleted."""
    if message.external_id is None:
        return None
    row = connection.execute(
        _DUPLICATE, (message.channel, message.chat_id, message.external_id)
    ).fetchone()
    if row is None:
        gone = digest(message.channel, message.chat_id, message.external_id)
        found = connection.execute(_FORGOTTEN, (gone,)).fetchone()
        return None if found is None else (0, message.key, True)
    body = (message.content, message.sender_id, dump_attachments(message.attachments))
    return row[0], SessionKey.parse(row[4]), row[1:4] == body


def is_full(connection: sqlite3.Connection, limit: int) -> bool:
    """Whether `limit` messages or more are pending, in all sessions together."""
    (count,) = connection.execute(_COUNT_PENDING, (limit,)).fetchone()
    return int(count) >= limit


def add(
    connection: sqlite3.Connection,
    session: int,
    message: InboundMessage,
    now: int,
    *,
    command: bool,
) -> int:
    """A new row, pending; that of a command is done as it is made."""
    cursor = connection.execute(
        _ADD,
        (
            session,
            "command" if command else "message",
            message.channel,
            message.chat_id,
            message.sender_id,
            message.external_id,
            message.content,
            dump_attachments(message.attachments),
            "done" if command else "pending",
            None,
            now,
        ),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def pending(
    connection: sqlite3.Connection, session: int, *, upto: int | None
) -> tuple[InboxRow, ...]:
    """The session's pending rows with ids up to `upto`, oldest first."""
    rows = connection.execute(_PENDING, (session, _EVERY if upto is None else upto))
    return tuple(_row(values) for values in rows.fetchall())


def count_pending(connection: sqlite3.Connection, session: int) -> int:
    (count,) = connection.execute(_COUNT_SESSION, (session,)).fetchone()
    return int(count)


def claim(connection: sqlite3.Connection, turn: int, rows: Sequence[InboxRow]) -> None:
    for row in rows:
        connection.execute(_CLAIM, (turn, row.id))


def unanswered(connection: sqlite3.Connection, turn: int) -> tuple[InboxRow, ...]:
    """The rows that `turn` claimed and no text answers yet."""
    return tuple(_row(values) for values in connection.execute(_OPEN, (turn,)).fetchall())


def unanswered_by_address(
    connection: sqlite3.Connection, turn: int
) -> dict[Address, tuple[int, ...]]:
    """Every address whose rows `turn` claimed, in order of the first, with those of its rows
    that no text answers yet."""
    found: dict[tuple[str, str], list[int]] = {}
    for row_id, channel, chat_id, answer in connection.execute(_CLAIMED, (turn,)).fetchall():
        ids = found.setdefault((channel, chat_id), [])
        if answer is None:
            ids.append(row_id)
    return {
        Address(channel=channel, chat_id=chat_id): tuple(ids)
        for (channel, chat_id), ids in found.items()
    }


def answer(connection: sqlite3.Connection, rows: Sequence[int], outbound: int) -> None:
    """Note that `outbound` is the one text that answers `rows`, which are done with it."""
    for row in rows:
        if connection.execute(_ANSWER, (outbound, row)).rowcount != 1:
            raise StoreError(f"message {row} is answered already; this text was not kept")


def condemn(connection: sqlite3.Connection, turn: int) -> None:
    """The unanswered rows of a turn that failed for good are set aside as dead."""
    connection.execute(_CONDEMN, (turn,))


def set_aside(connection: sqlite3.Connection, rows: Sequence[int]) -> None:
    """Rows that wait are dead: listed, retryable, and no turn will see them."""
    for row in rows:
        connection.execute(_SET_ASIDE, (row,))


def pending_keys(connection: sqlite3.Connection) -> tuple[PendingKey, ...]:
    found: dict[str, list[int]] = {}
    for key, row_id in connection.execute(_PENDING_KEYS):
        found.setdefault(key, []).append(row_id)
    return tuple(
        PendingKey(key=SessionKey.parse(key), ids=tuple(ids)) for key, ids in found.items()
    )


def last_address(connection: sqlite3.Connection) -> Address | None:
    row = connection.execute(_LAST_ADDRESS).fetchone()
    return None if row is None else Address(channel=row[0], chat_id=row[1])


def dead(connection: sqlite3.Connection, *, limit: int) -> tuple[DeadRow, ...]:
    return tuple(
        DeadRow(
            id=row_id,
            key=SessionKey.parse(key),
            turn_id=turn_id,
            accepted_at=accepted_at,
            content=content,
        )
        for row_id, key, turn_id, accepted_at, content in connection.execute(_DEAD, (limit,))
    )


def retry(
    connection: sqlite3.Connection, row_id: int, now: int
) -> tuple[int, SessionKey, bool] | None:
    """Accept a dead row anew, as a row of its own: the text that told of its failure keeps
    answering the first. The new id, the session, and whether that was done before; None for a
    row that is not dead."""
    row = connection.execute(_RETRY_SOURCE, (row_id,)).fetchone()
    if row is None:
        return None
    session, channel, chat_id, sender_id, content, attachments, state, key, retried = row
    if state == "retried":
        return retried, SessionKey.parse(key), True
    if state != "dead":
        return None
    connection.execute(_RETRIED, (row_id,))
    values = (session, "message", channel, chat_id, sender_id, None, content, attachments)
    cursor = connection.execute(_ADD, (*values, "pending", row_id, now))
    assert cursor.lastrowid is not None
    return cursor.lastrowid, SessionKey.parse(key), False


def depth(connection: sqlite3.Connection) -> tuple[int, int | None]:
    """How many rows are pending, and when the oldest was accepted."""
    count, oldest = connection.execute(_DEPTH).fetchone()
    return count, oldest


def count_dead(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute(_COUNT_DEAD).fetchone()
    return int(count)


def _row(
    values: tuple[int, str, str, str | None, str | None, str, str | None, int, str],
) -> InboxRow:
    row_id, channel, chat_id, sender_id, external_id, content, attachments, at, key = values
    session_key = SessionKey.parse(key)
    own = session_key.channel == channel and session_key.chat_id == chat_id
    return InboxRow(
        id=row_id,
        message=InboundMessage(
            channel=channel,
            chat_id=chat_id,
            content=content,
            sender_id=sender_id,
            external_id=external_id,
            attachments=load_attachments(attachments),
            session_key=None if own else session_key,
        ),
        accepted_at=at,
    )
