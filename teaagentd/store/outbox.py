"""The table `outbox`: every text for people, until its channel has taken it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

import orjson

from teaagentd.store import inbox, parts
from teaagentd.store.sessions import key_text
from teaagentd.store.transcripts import PAGE_CHARACTERS
from teaagentd.store.values import Letter
from teaagentd.transcript import clean_text, spoken
from teaagentd.types import Address, OutboundKind, OutboundMessage, SessionKey

_ADD = """
    INSERT INTO outbox (session, turn, channel, chat_id, kind, content, message_ids, state,
        created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COLUMNS = """
    o.id, o.channel, o.chat_id, s.key, t.id, o.kind, o.content, o.created_at, o.not_before,
    o.message_ids
"""
_SOURCE = """
    FROM outbox o JOIN sessions s ON s.id = o.session LEFT JOIN turns t ON t.number = o.turn
"""
_REPLIES = f"""
    SELECT {_COLUMNS} {_SOURCE}
    WHERE o.session = (SELECT id FROM sessions WHERE key = ?) AND o.id > ? ORDER BY o.id LIMIT ?
"""
# Husks have no channel.
_ALL_REPLIES = f"""
    SELECT {_COLUMNS} {_SOURCE} WHERE o.id > ? AND o.channel <> '' ORDER BY o.id LIMIT ?
"""
_NEWEST = "SELECT coalesce(max(id), 0) FROM outbox"
_UNDELIVERED = f"""
    SELECT {_COLUMNS} {_SOURCE} WHERE o.channel = ? AND o.state = 'pending' ORDER BY o.id
"""
_NOTICES = """
    SELECT content FROM outbox
    WHERE turn = ? AND kind = 'notice' AND channel = ? AND chat_id = ? ORDER BY id
"""
_CHANNELS = "SELECT DISTINCT channel FROM outbox WHERE state = 'pending' ORDER BY channel"
_IS_PENDING = "SELECT channel, chat_id FROM outbox WHERE id = ? AND state = 'pending'"
_SETTLE = """
    UPDATE outbox SET state = ?, reason = ?, settled_at = ? WHERE id = ? AND state = 'pending'
"""
_DELAY = "UPDATE outbox SET not_before = ? WHERE id = ?"
_DEPTH = "SELECT count(*), min(created_at) FROM outbox WHERE state = 'pending'"
DROPPED = "dropped by the operator"
_COUNT_DEAD = f"SELECT count(*) FROM outbox WHERE state = 'dead' AND reason IS NOT '{DROPPED}'"
_DEAD_BY_CHANNEL = f"""
    SELECT channel, count(*) FROM outbox
    WHERE state = 'dead' AND reason IS NOT '{DROPPED}' GROUP BY channel
"""


def add(
    connection: sqlite3.Connection,
    *,
    session: int,
    key: SessionKey,
    turn: tuple[int, str] | None,
    address: Address,
    kind: OutboundKind,
    content: str,
    answers: Sequence[int],
    pull: bool,
    now: int,
) -> OutboundMessage:
    """A new text; `turn` is the number and the id of the turn it comes from, `answers` the inbox
    rows that it answers. On a `pull` channel being there is its delivery. An answer that says
    only what the turn's notices told the address counts as sent with them (answered-once)."""
    content = clean_text(content)
    state = "available" if pull else "pending"
    if turn is not None and kind == "final" and not pull:
        state = "sent" if content == _told(connection, turn[0], address) else "pending"
    cursor = connection.execute(
        _ADD,
        (
            session,
            turn[0] if turn else None,
            address.channel,
            address.chat_id,
            kind,
            content,
            orjson.dumps(answers).decode(),
            state,
            now,
        ),
    )
    assert cursor.lastrowid is not None
    inbox.answer(connection, answers, cursor.lastrowid)
    return OutboundMessage(
        id=cursor.lastrowid,
        address=address,
        session_key=key,
        turn_id=turn[1] if turn else None,
        kind=kind,
        message_ids=tuple(answers),
        content=content,
        created_at=now,
    )


def _told(connection: sqlite3.Connection, turn: int, address: Address) -> str | None:
    """What the notices of `turn` to `address` say together, if there are any."""
    rows = connection.execute(_NOTICES, (turn, address.channel, address.chat_id)).fetchall()
    return spoken([content for (content,) in rows]) if rows else None


def replies(
    connection: sqlite3.Connection, key: SessionKey, *, after: int, limit: int
) -> tuple[OutboundMessage, ...]:
    """The session's texts with ids past `after`, oldest first, `limit` or a page of them."""
    rows = connection.execute(_REPLIES, (key_text(key), after, limit))
    return tuple(_first_of(map(_outbound, rows)))


def all_replies(
    connection: sqlite3.Connection, *, after: int, limit: int
) -> tuple[OutboundMessage, ...]:
    """The texts of every session with ids past `after`, oldest first."""
    rows = connection.execute(_ALL_REPLIES, (after, limit))
    return tuple(_first_of(map(_outbound, rows)))


def _first_of(texts: Iterable[OutboundMessage]) -> Iterator[OutboundMessage]:
    """Up to the one with which a page is full."""
    size = 0
    for text in texts:
        yield text
        size += len(text.content)
        if size >= PAGE_CHARACTERS:
            return


def newest(connection: sqlite3.Connection) -> int:
    """The highest id of a text; 0 where there is none."""
    (found,) = connection.execute(_NEWEST).fetchone()
    return int(found)


def undelivered(connection: sqlite3.Connection, channel: str) -> tuple[Letter, ...]:
    """What `channel` has not taken whole, oldest first, with the parts frozen so far."""
    rows = connection.execute(_UNDELIVERED, (clean_text(channel),)).fetchall()
    return tuple(
        Letter(outbound=_outbound(row), parts=parts.frozen(connection, row[0]), not_before=row[8])
        for row in rows
    )


def channels(connection: sqlite3.Connection) -> tuple[str, ...]:
    """The channels that have not taken everything."""
    return tuple(channel for (channel,) in connection.execute(_CHANNELS))


def pending_address(connection: sqlite3.Connection, outbound: int) -> Address | None:
    """Where a text goes that is still to be delivered; None once it is sent, dead or unknown."""
    row = connection.execute(_IS_PENDING, (outbound,)).fetchone()
    return None if row is None else Address(channel=row[0], chat_id=row[1])


def sent(connection: sqlite3.Connection, outbound: int, now: int) -> None:
    connection.execute(_SETTLE, ("sent", None, now, outbound))


def dead(connection: sqlite3.Connection, outbound: int, reason: str, now: int) -> None:
    connection.execute(_SETTLE, ("dead", clean_text(reason), now, outbound))


def delay(connection: sqlite3.Connection, outbound: int, until: int) -> None:
    connection.execute(_DELAY, (until, outbound))


def depth(connection: sqlite3.Connection) -> tuple[int, int | None]:
    """How many texts wait for their channels, and when the oldest was made."""
    count, oldest = connection.execute(_DEPTH).fetchone()
    return count, oldest


def count_dead(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute(_COUNT_DEAD).fetchone()
    return int(count)


def dead_by_channel(connection: sqlite3.Connection) -> dict[str, int]:
    """How many texts each channel did not take, and nobody has dropped."""
    return dict(connection.execute(_DEAD_BY_CHANNEL).fetchall())


def _outbound(
    row: tuple[int, str, str, str, str | None, OutboundKind, str, int, int, str],
) -> OutboundMessage:
    return OutboundMessage(
        id=row[0],
        address=Address(channel=row[1], chat_id=row[2]),
        session_key=SessionKey.parse(row[3]),
        turn_id=row[4],
        kind=row[5],
        message_ids=tuple(orjson.loads(row[9])),
        content=row[6],
        created_at=row[7],
    )
