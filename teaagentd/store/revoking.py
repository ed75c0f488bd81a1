"""T7: senders who may no longer speak lose effect at once, what they sent before included."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from teaagentd.store import ending, inbox, outbox, turns
from teaagentd.types import Address, OutboundMessage, SessionKey

_WAITING = """
    SELECT i.id, i.sender_id, i.chat_id, s.id, s.key
    FROM inbox i JOIN sessions s ON s.id = i.session
    WHERE i.state = 'pending' AND i.channel = ? ORDER BY i.id
"""
_AT_WORK = """
    SELECT DISTINCT t.session, i.sender_id FROM turns t JOIN inbox i ON i.turn = t.number
    WHERE t.state = 'running' AND i.channel = ? ORDER BY t.session
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """What became of it: rows set aside as dead, by session; turns closed; what was said."""

    set_aside: Mapping[SessionKey, tuple[int, ...]]
    turn_ids: tuple[str, ...]
    outbound: tuple[OutboundMessage, ...]


def revoke(
    connection: sqlite3.Connection,
    allowed: Mapping[str, frozenset[str]],
    *,
    closing: str,
    pull: frozenset[str],
    now: int,
) -> Revoked:
    """Set aside what waits from senders that `allowed` leaves out of their channel, and close
    the turns that act on a message of one. Each chat of theirs is told `closing`, once."""
    set_aside: dict[SessionKey, tuple[int, ...]] = {}
    turn_ids: list[str] = []
    outbound: list[OutboundMessage] = []
    for channel, senders in allowed.items():
        for turn in _at_work(connection, channel, senders):
            word = ending.last_word(closing)
            texts, _ = ending.end(connection, turn, word, "stopped", pull=pull, now=now)
            outbound += texts
            turn_ids.append(turn.id)
        for (session, key, chat_id), rows in _waiting(connection, channel, senders).items():
            inbox.set_aside(connection, rows)
            text = outbox.add(
                connection,
                session=session,
                key=key,
                turn=None,
                address=Address(channel=channel, chat_id=chat_id),
                kind="final",
                content=closing,
                answers=rows,
                pull=channel in pull,
                now=now,
            )
            outbound.append(text)
            set_aside[key] = (*set_aside.get(key, ()), *rows)
    return Revoked(set_aside=set_aside, turn_ids=tuple(turn_ids), outbound=tuple(outbound))


def _at_work(
    connection: sqlite3.Connection, channel: str, senders: frozenset[str]
) -> list[turns.TurnRow]:
    found = connection.execute(_AT_WORK, (channel,)).fetchall()
    sessions = dict.fromkeys(session for session, sender in found if sender not in senders)
    running = (turns.running_in(connection, session) for session in sessions)
    return [turn for turn in running if turn is not None]


def _waiting(
    connection: sqlite3.Connection, channel: str, senders: frozenset[str]
) -> Mapping[tuple[int, SessionKey, str], list[int]]:
    """Rows by session and chat."""
    found: dict[tuple[int, SessionKey, str], list[int]] = {}
    for row_id, sender, chat_id, session, key in connection.execute(_WAITING, (channel,)):
        if sender not in senders:
            found.setdefault((session, SessionKey.parse(key), chat_id), []).append(row_id)
    return found
