"""The table `alerts`: what the owner is told of unasked, once for each cause."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import replace

import orjson

from teaagentd.store import outbox, sessions
from teaagentd.transcript import clean_text
from teaagentd.types import Address, Alert, AlertKind, OutboundMessage, SessionKey

MOST_TOLD = 5
"""Alerts told within an hour; the others are in `status` until there is room again."""
_HOUR_MS = 3_600_000
_LOOK_BACK = 10_000
_OPEN = """
    SELECT kind, subject, text, raised_at, told_at FROM alerts WHERE cleared_at IS NULL ORDER BY id
"""
_FIND = """
    SELECT id, raised_at, told_at FROM alerts
    WHERE kind = ? AND subject = ? AND cleared_at IS NULL
"""
_ADD = "INSERT INTO alerts (kind, subject, text, raised_at) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE alerts SET text = ?, count = count + 1 WHERE id = ? AND text <> ?"
_TOLD = "UPDATE alerts SET told_at = ? WHERE id = ?"
_CLEAR = "UPDATE alerts SET cleared_at = ? WHERE kind = ? AND subject = ? AND cleared_at IS NULL"
_TOLD_LATELY = "SELECT count(*) FROM alerts WHERE told_at > ?"
_ADDRESS = """
    SELECT channel, chat_id FROM (
        SELECT channel, chat_id FROM inbox WHERE kind = 'message' AND retry_of IS NULL
        ORDER BY id DESC LIMIT ?
    ) WHERE channel IN (SELECT value FROM json_each(?)) LIMIT 1
"""
_MORE = " More notices like this are in `teaagentd status` only, for an hour."


def open_alerts(connection: sqlite3.Connection) -> tuple[Alert, ...]:
    """Every alert whose cause has not gone, the oldest first."""
    return tuple(
        Alert(kind=kind, subject=subject, text=text, raised_at=raised_at, told_at=told_at)
        for kind, subject, text, raised_at, told_at in connection.execute(_OPEN)
    )


def raise_alert(
    connection: sqlite3.Connection,
    alert: Alert,
    *,
    channels: Collection[str],
    pull: frozenset[str],
    now: int,
) -> tuple[Alert, tuple[OutboundMessage, ...]]:
    """Keep `alert`, and tell it if it was not told yet: where the newest message on one of
    `channels` came from. As it is kept now, and what was said."""
    text = clean_text(alert.text)
    subject = clean_text(alert.subject)
    found = connection.execute(_FIND, (alert.kind, subject)).fetchone()
    if found is None:
        cursor = connection.execute(_ADD, (alert.kind, subject, text, alert.raised_at))
        assert cursor.lastrowid is not None
        found = cursor.lastrowid, alert.raised_at, None
    else:
        connection.execute(_UPDATE, (text, found[0], text))
    alert_id, raised_at, told_at = found
    kept = replace(alert, subject=subject, text=text, raised_at=raised_at, told_at=told_at)
    (lately,) = connection.execute(_TOLD_LATELY, (now - _HOUR_MS,)).fetchone()
    address = _last_address(connection, channels)
    if told_at is not None or lately >= MOST_TOLD or address is None:
        return kept, ()
    connection.execute(_TOLD, (now, alert_id))
    words = f"Attention: {text}{_MORE if lately + 1 == MOST_TOLD else ''}"
    said = _say(connection, address, words, pull=pull, now=now)
    return replace(kept, told_at=now), (said,)


def clear(connection: sqlite3.Connection, kind: AlertKind, subject: str, now: int) -> None:
    """The cause has gone: should it come back, it is told anew."""
    connection.execute(_CLEAR, (now, kind, clean_text(subject)))


def _last_address(connection: sqlite3.Connection, channels: Collection[str]) -> Address | None:
    listed = orjson.dumps(sorted(channels)).decode()
    row = connection.execute(_ADDRESS, (_LOOK_BACK, listed)).fetchone()
    return None if row is None else Address(channel=row[0], chat_id=row[1])


def _say(
    connection: sqlite3.Connection, address: Address, text: str, *, pull: frozenset[str], now: int
) -> OutboundMessage:
    key = SessionKey(channel=address.channel, chat_id=address.chat_id)
    session = sessions.ensure(connection, key, now, listed=False)
    return outbox.add(
        connection,
        session=session.id,
        key=key,
        turn=None,
        address=address,
        kind="notice",
        content=text,
        answers=(),
        pull=address.channel in pull,
        now=now,
    )
