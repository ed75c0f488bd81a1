"""T8: a summary takes the place of the messages that it tells of. Nothing is deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from teaagentd.store import ledger, sessions, transcripts, turns
from teaagentd.store.values import Compaction
from teaagentd.types import Attempt

_FIRST = """
    SELECT id FROM messages WHERE session = ? AND place >= ? ORDER BY place, position LIMIT 1
"""
_LAST = """
    SELECT place, turn, (
        SELECT count(*) FROM messages
        WHERE session = last.session AND place >= :live_from
            AND (place, position) <= (last.place, last.position)
    )
    FROM messages last WHERE id = :last AND session = :session AND place >= :live_from
"""
_NEXT = "SELECT min(place) FROM messages WHERE session = ? AND place > ?"


def compact(
    connection: sqlite3.Connection,
    compaction: Compaction | None,
    *,
    attempts: Sequence[Attempt],
    now: int,
) -> bool:
    """Begin the live history with the summary, followed by what comes after its last message.
    False, with only `attempts` booked, if the history is no longer the one that was summarised,
    if a turn other than the one that asks is at work on it, or without a compaction."""
    session = sessions.find(connection, compaction.key) if compaction is not None else None
    ledger.book(connection, attempts, ledger.of_session(session))
    if compaction is None or session is None or session.generation != compaction.generation:
        return False
    running = turns.running_in(connection, session.id)
    if running is not None and running.id != compaction.turn_id:
        return False
    first = connection.execute(_FIRST, (session.id, session.live_from)).fetchone()
    where = {"last": compaction.last_id, "session": session.id, "live_from": session.live_from}
    last = connection.execute(_LAST, where).fetchone()
    if first is None or first[0] != compaction.first_id or last is None:
        return False
    place, turn, count = last
    if count != compaction.count:
        # Some of what the summary tells was erased meanwhile.
        return False
    (following,) = connection.execute(_NEXT, (session.id, place)).fetchone()
    boundary = place + 1 if following is None else following
    transcripts.add_summary(connection, session.id, turn, boundary, compaction.summary, now)
    sessions.begin_history_at(connection, session.id, boundary)
    return True
