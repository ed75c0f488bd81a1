"""The table `calls`: what became of each call of a decision, from planned to finished.

The open calls of a turn are always those of its last decision. The same id may stand twice in
one decision: it is then paired by position.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from teaagentd.errors import StoreError
from teaagentd.store import transcripts
from teaagentd.store.turns import TurnRow
from teaagentd.transcript import NOT_RUN, UNKNOWN_OUTCOME, clean_text
from teaagentd.types import LLMMessage, ToolCall, ToolResult

_ADD = """
    INSERT INTO calls (turn, place, position, call_id, name, state)
    VALUES (?, ?, ?, ?, ?, 'planned')
"""
_OPEN = """
    SELECT id, place, position, call_id, name, state FROM calls
    WHERE turn = ? AND state <> 'finished' ORDER BY position
"""
_START = "UPDATE calls SET state = 'started', started_at = ? WHERE id = ?"
_FINISH = "UPDATE calls SET state = 'finished', status = ?, finished_at = ? WHERE id = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCall:
    """A call that has no result yet."""

    id: int
    place: int
    position: int
    call_id: str
    name: str
    started: bool


def plan(
    connection: sqlite3.Connection, turn: TurnRow, calls: tuple[ToolCall, ...], place: int
) -> None:
    """The calls of the message at `place`, known and not started."""
    for position, call in enumerate(calls, 1):
        connection.execute(
            _ADD, (turn.number, place, position, clean_text(call.id), clean_text(call.name))
        )


def open_calls(connection: sqlite3.Connection, turn: TurnRow) -> tuple[OpenCall, ...]:
    """In the order of the decision."""
    return tuple(
        OpenCall(
            id=row_id,
            place=place,
            position=position,
            call_id=call_id,
            name=name,
            started=state == "started",
        )
        for row_id, place, position, call_id, name, state in connection.execute(
            _OPEN, (turn.number,)
        ).fetchall()
    )


def start(connection: sqlite3.Connection, turn: TurnRow, call_id: str, now: int) -> None:
    """Mark the call as started. Raises `StoreError` if it is not one that waits to start."""
    wanted = clean_text(call_id)
    for call in open_calls(connection, turn):
        if call.call_id == wanted and not call.started:
            connection.execute(_START, (now, call.id))
            return
    raise StoreError(f"call {call_id!r} of turn {turn.id} does not wait to be started")


def finish(connection: sqlite3.Connection, turn: TurnRow, result: ToolResult, now: int) -> bool:
    """Append the call's result; True when it was the last one open. Raises `StoreError` if the
    call is unknown or has its result."""
    wanted = clean_text(result.call_id)
    waiting = open_calls(connection, turn)
    named = [call for call in waiting if call.call_id == wanted]
    if not named:
        raise StoreError(f"call {result.call_id!r} of turn {turn.id} is not open")
    call = min(named, key=lambda found: not found.started)
    _close(connection, turn, call, result, now)
    return len(waiting) == 1


def close_all(connection: sqlite3.Connection, turn: TurnRow, now: int) -> None:
    """Give every open call the result that says what is known of it."""
    for call in open_calls(connection, turn):
        result = ToolResult(
            call_id=call.call_id,
            name=call.name,
            content=UNKNOWN_OUTCOME if call.started else NOT_RUN,
            status="unknown" if call.started else "not_run",
        )
        _close(connection, turn, call, result, now)


def _close(
    connection: sqlite3.Connection, turn: TurnRow, call: OpenCall, result: ToolResult, now: int
) -> None:
    message = LLMMessage(
        role="tool",
        content=result.content,
        tool_call_id=call.call_id,
        name=call.name,
        attachments=result.attachments,
    )
    transcripts.append_result(connection, turn, message, call.place, call.position, now)
    connection.execute(_FINISH, (result.status, now, call.id))
