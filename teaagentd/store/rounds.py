"""T2 and T3: a decision with calls, and what becomes of each call."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from teaagentd.store import calls, ending, transcripts, turns
from teaagentd.store.lifecycle import fence_and_book
from teaagentd.types import Attempt, LLMMessage, OutboundMessage, ToolResult


def decide(
    connection: sqlite3.Connection,
    turn_id: str,
    message: LLMMessage,
    *,
    notice: str | None,
    attempts: Sequence[Attempt],
    pull: frozenset[str],
    now: int,
) -> tuple[OutboundMessage, ...] | None:
    """T2. Calls of an earlier decision that are still open get their results first. None for a
    turn that has ended before: only `attempts` are booked then."""
    turn = fence_and_book(connection, turn_id, attempts)
    if turn is None:
        return None
    calls.close_all(connection, turn, now)
    (kept,) = transcripts.append(connection, turn, (message,), now)
    place = transcripts.place_of(connection, kept)
    calls.plan(connection, turn, message.tool_calls, place)
    if notice is None:
        return ()
    texts, _ = ending.say(connection, turn, "notice", notice, pull=pull, now=now)
    return texts


def start_call(connection: sqlite3.Connection, turn_id: str, call_id: str, *, now: int) -> None:
    """T3. Raises `TurnEnded`, and `StoreError` for a call that does not wait to be started."""
    calls.start(connection, turns.fence(connection, turn_id), call_id, now)


def finish_call(
    connection: sqlite3.Connection, turn_id: str, result: ToolResult, *, now: int
) -> None:
    """T3. The last result of a decision shows that the turn gets on: its attempts start over.
    Raises `TurnEnded`, and `StoreError` for a call that is not open."""
    turn = turns.fence(connection, turn_id)
    if calls.finish(connection, turn, result, now) and turn.attempt > 1:
        turns.set_attempt(connection, turn, 1)
