"""T1, T4 and T5: a turn begins or is taken up again, takes in what waits, and closes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from teaagentd.store import calls, ending, inbox, ledger, sessions, transcripts, turns
from teaagentd.store.recent import KnownHistory
from teaagentd.store.turns import TurnRow
from teaagentd.store.values import Begun, Closed, Folded, NewTurn, NoteRenderer
from teaagentd.transcript import estimate_message_tokens, estimate_request_tokens
from teaagentd.types import Attempt, InboxRow, LLMMessage, OutboundMessage, TurnOutcome

log = structlog.get_logger()

MAX_ATTEMPTS = 3
"""A turn that went down with its process this often is given up."""
LEFT_OVER = "This was interrupted before I could finish it. What was done so far is kept."
"""The last word of a turn that could not be closed while the disk failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intake:
    """Which pending rows a turn may take: ids up to `upto` (None: all), as many as fit into
    `budget_tokens` beside the history (None: all), one at least."""

    upto: int | None
    budget_tokens: int | None
    note: NoteRenderer


def begin(
    connection: sqlite3.Connection,
    new: NewTurn,
    intake: Intake,
    *,
    known: KnownHistory | None,
    pull: frozenset[str],
    now: int,
) -> Begun | None:
    """T1. None for a bus turn when nothing is pending. What is `known` is not read again."""
    waiting: tuple[InboxRow, ...] = ()
    if new.origin == "bus":
        session = sessions.find(connection, new.key)
        if session is None:
            return None
        waiting = inbox.pending(connection, session.id, upto=intake.upto)
        if not waiting:
            return None
    elif new.opening is None:
        raise ValueError(f"a turn of origin {new.origin} needs its opening message")
    else:
        listed = new.origin != "ephemeral"
        session = sessions.ensure(connection, new.key, now, listed=listed)
    outbound = _close_left_over(connection, session.id, pull=pull, now=now)
    sessions.touch(connection, session.id, now)
    turn = turns.add(connection, new, session, now)
    history = transcripts.history(connection, session, known) if turn.keeps_messages else ()
    claimed: tuple[InboxRow, ...] = ()
    if waiting or new.opening is None:
        claimed, added = _take_in(connection, turn, waiting, intake, history, now)
    else:
        added = transcripts.append(connection, turn, (new.opening,), now)
    return _begun(connection, turn, 1, (*history, *added), claimed, outbound)


def _close_left_over(
    connection: sqlite3.Connection, session: int, *, pull: frozenset[str], now: int
) -> tuple[OutboundMessage, ...]:
    """Close the turn that still stands as running, though its key is free for another."""
    turn = turns.running_in(connection, session)
    if turn is None:
        return ()
    log.warning("turn_left_over_closed", turn=turn.id, session=str(turn.key))
    word = ending.last_word(LEFT_OVER)
    texts, _ = ending.end(connection, turn, word, "interrupted", pull=pull, now=now)
    return texts


def resume(
    connection: sqlite3.Connection,
    turn_id: str,
    *,
    notice: str | None,
    failed: str,
    pull: frozenset[str],
    now: int,
) -> Begun | Closed:
    """T1 again, after a crash or a planned shutdown. Raises `TurnEnded`."""
    turn = turns.fence(connection, turn_id)
    attempt = turn.attempt if turn.parked else turn.attempt + 1
    if attempt > MAX_ATTEMPTS:
        inbox.condemn(connection, turn.number)
        word = ending.last_word(failed)
        texts, _ = ending.end(connection, turn, word, "failed", pull=pull, now=now)
        return Closed(outbound=texts)
    turns.set_attempt(connection, turn, attempt)
    calls.close_all(connection, turn, now)
    told: tuple[OutboundMessage, ...] = ()
    if notice is not None:
        told, _ = ending.say(connection, turn, "notice", notice, pull=pull, now=now)
    history = transcripts.history(connection, turn.session) if turn.keeps_messages else ()
    return _begun(
        connection, turn, attempt, history, inbox.unanswered(connection, turn.number), told
    )


def park(connection: sqlite3.Connection, turn_id: str, attempts: Sequence[Attempt]) -> None:
    """A planned end of the process: taking the turn up again does not count. Raises `TurnEnded`."""
    turn = turns.fence(connection, turn_id)
    ledger.book(connection, attempts, ledger.of_turn(turn))
    turns.park(connection, turn)


def fold(connection: sqlite3.Connection, turn_id: str, intake: Intake, *, now: int) -> Folded:
    """T4 between rounds. Takes nothing in while a call is open. Raises `TurnEnded`."""
    turn = turns.fence(connection, turn_id)
    if calls.open_calls(connection, turn):
        return Folded(messages=(), claimed=())
    waiting = inbox.pending(connection, turn.session.id, upto=intake.upto)
    claimed, messages = _take_in(connection, turn, waiting, intake, None, now)
    return Folded(messages=messages, claimed=claimed)


def close_or_fold(
    connection: sqlite3.Connection,
    turn_id: str,
    message: LLMMessage,
    intake: Intake | None,
    *,
    attempts: Sequence[Attempt],
    pull: frozenset[str],
    now: int,
) -> Folded | Closed | None:
    """T4 or T5: the model answered. Without `intake` the turn closes. None for a turn that has
    ended before: only `attempts` are booked then."""
    turn = fence_and_book(connection, turn_id, attempts)
    if turn is None:
        return None
    waiting: tuple[InboxRow, ...] = ()
    if intake is not None:
        waiting = inbox.pending(connection, turn.session.id, upto=intake.upto)
    if intake is None or not waiting:
        texts, _ = ending.end(connection, turn, message, "answered", pull=pull, now=now)
        return Closed(outbound=texts)
    calls.close_all(connection, turn, now)
    transcripts.append(connection, turn, (message,), now)
    texts, _ = ending.say(connection, turn, "interim", message.content, pull=pull, now=now)
    claimed, messages = _take_in(connection, turn, waiting, intake, None, now)
    return Folded(messages=messages, claimed=claimed, outbound=texts)


def close(
    connection: sqlite3.Connection,
    turn_id: str,
    *,
    text: str,
    outcome: TurnOutcome,
    attempts: Sequence[Attempt],
    pull: frozenset[str],
    now: int,
) -> Closed | None:
    """T5: every exit but an answer. None as `close_or_fold`."""
    turn = fence_and_book(connection, turn_id, attempts)
    if turn is None:
        return None
    word = ending.last_word(text)
    texts, _ = ending.end(connection, turn, word, outcome, pull=pull, now=now)
    return Closed(outbound=texts)


def fence_and_book(
    connection: sqlite3.Connection, turn_id: str, attempts: Sequence[Attempt]
) -> TurnRow | None:
    """Book `attempts`, which were made whatever became of the turn; the turn if it may write."""
    found = turns.find(connection, turn_id)
    ledger.book(connection, attempts, ledger.of_turn(found[0]) if found else ledger.NOBODY)
    return found[0] if found and found[1] else None


def _take_in(
    connection: sqlite3.Connection,
    turn: TurnRow,
    waiting: Sequence[InboxRow],
    intake: Intake,
    history: Sequence[LLMMessage] | None,
    now: int,
) -> tuple[tuple[InboxRow, ...], tuple[LLMMessage, ...]]:
    """Claim what is waiting and fits, and append it with its notes. `history` is read if it is
    needed and not given. A note is rendered only for a row that is taken."""
    if not waiting:
        return (), ()
    taken: list[InboxRow] = []
    messages: list[LLMMessage] = []
    total = 0
    if intake.budget_tokens is not None and len(waiting) > 1:
        known = transcripts.history(connection, turn.session) if history is None else history
        total = estimate_request_tokens(known)
    for row in waiting:
        bare = estimate_message_tokens(transcripts.from_inbox(row, None))
        if taken and intake.budget_tokens is not None and total + bare > intake.budget_tokens:
            break
        message = transcripts.from_inbox(row, intake.note(row))
        total += estimate_message_tokens(message)
        taken.append(row)
        messages.append(message)
    inbox.claim(connection, turn.number, taken)
    return tuple(taken), transcripts.append(connection, turn, messages, now)


def _begun(
    connection: sqlite3.Connection,
    turn: TurnRow,
    attempt: int,
    history: tuple[LLMMessage, ...],
    claimed: tuple[InboxRow, ...],
    outbound: tuple[OutboundMessage, ...],
) -> Begun:
    return Begun(
        turn_id=turn.id,
        key=turn.key,
        origin=turn.origin,
        generation=turn.generation,
        attempt=attempt,
        history=history,
        claimed=claimed,
        outbound=outbound,
        model=sessions.chosen(connection, turn.session.id),
    )
