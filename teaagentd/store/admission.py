"""T0 and T7: what comes in, a message to be answered or a command with its effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from teaagentd.errors import BusFull, ExternalIdConflict, StoreError
from teaagentd.store import ending, inbox, outbox, sessions, transcripts, turns
from teaagentd.store.sessions import SessionRow
from teaagentd.store.values import (
    Accepted,
    Choice,
    Commanded,
    CommandEffect,
    CommandOutcome,
    NewTurn,
    NoteRenderer,
)
from teaagentd.transcript import clean_message
from teaagentd.types import Address, InboundMessage, OutboundMessage, SessionKey, TurnOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A command as T7 carries it out. `closing` is the last word of the turn that it closes;
    `reply` words its answer from what it found and did."""

    key: SessionKey
    effect: CommandEffect
    reply: Callable[[CommandOutcome], str]
    closing: str
    note: NoteRenderer
    choice: Choice | None = None
    """For the effect `choose`."""


def accept(
    connection: sqlite3.Connection, message: InboundMessage, *, max_pending: int, now: int
) -> Accepted:
    """T0. Raises `BusFull` and `ExternalIdConflict`."""
    message = clean_message(message)
    known = _known(connection, message)
    if known is not None:
        return known
    if inbox.is_full(connection, max_pending):
        raise BusFull(max_pending)
    session = sessions.ensure(connection, message.key, now, listed=True)
    row_id = inbox.add(connection, session.id, message, now, command=False)
    return Accepted(id=row_id, session_key=message.key, duplicate=False)


def retry(connection: sqlite3.Connection, row_id: int, *, max_pending: int, now: int) -> Accepted:
    """Accept a dead row anew. Raises `BusFull`, and `StoreError` for a row that is not dead."""
    full = inbox.is_full(connection, max_pending)
    done = inbox.retry(connection, row_id, now)
    if done is None:
        raise StoreError(f"message {row_id} is not set aside as dead; nothing was changed")
    new_id, key, duplicate = done
    if full and not duplicate:
        raise BusFull(max_pending)
    return Accepted(id=new_id, session_key=key, duplicate=duplicate)


def command(
    connection: sqlite3.Connection,
    message: InboundMessage | None,
    order: Order,
    *,
    pull: frozenset[str],
    now: int,
) -> Commanded:
    """T7. Raises `ExternalIdConflict`."""
    if message is not None:
        message = clean_message(message)
        known = _known(connection, message)
        if known is not None:
            return Commanded(id=known.id, duplicate=True, outcome=None, outbound=())
    session = sessions.ensure(connection, order.key, now, listed=False)
    row_id = None
    if message is not None:
        row_id = inbox.add(connection, session.id, message, now, command=True)
    done = _carry_out(
        connection, order, session, message.address if message else None, pull=pull, now=now
    )
    texts = done.texts
    if message is not None and row_id is not None:
        answer = outbox.add(
            connection,
            session=session.id,
            key=order.key,
            turn=done.turn,
            address=message.address,
            kind="final",
            content=order.reply(done.outcome),
            answers=sorted((*done.aside, row_id)),
            pull=message.channel in pull,
            now=now,
        )
        texts = (*texts, answer)
    return Commanded(id=row_id, duplicate=False, outcome=done.outcome, outbound=texts)


def _known(connection: sqlite3.Connection, message: InboundMessage) -> Accepted | None:
    """What was accepted before under the same external id. Raises `ExternalIdConflict`."""
    found = inbox.find_duplicate(connection, message)
    if found is None:
        return None
    row_id, key, same = found
    if not same:
        assert message.external_id is not None
        raise ExternalIdConflict(message.external_id, row_id)
    return Accepted(id=row_id, session_key=key, duplicate=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Done:
    outcome: CommandOutcome
    texts: tuple[OutboundMessage, ...] = ()
    aside: tuple[int, ...] = ()
    """The commander's own rows: its reply answers them."""
    turn: tuple[int, str] | None = None


def _carry_out(
    connection: sqlite3.Connection,
    order: Order,
    session: SessionRow,
    apart: Address | None,
    *,
    pull: frozenset[str],
    now: int,
) -> _Done:
    """The command's effect: the running turn closed, or what waits; then the new generation."""
    turn = waiting = None
    if order.choice is not None:
        sessions.choose(
            connection, None if order.choice.for_all else session.id, order.choice.model
        )
    if order.effect in ("stop", "new"):
        turn = turns.running_in(connection, session.id)
        if turn is None and order.effect == "stop":
            turn = waiting = _take_up_waiting(connection, order, session, now)
    texts: tuple[OutboundMessage, ...] = ()
    aside: tuple[int, ...] = ()
    stopped = 0
    if turn is not None:
        if waiting is not None:
            stopped = len(inbox.unanswered(connection, waiting.number))
        word = ending.last_word(order.closing)
        outcome: TurnOutcome = "superseded" if order.effect == "new" else "stopped"
        texts, aside = ending.end(connection, turn, word, outcome, pull=pull, now=now, apart=apart)
    if order.effect == "new":
        sessions.renew(connection, session.id)
    found = CommandOutcome(
        stopped_turn_id=turn.id if turn and waiting is None else None,
        stopped_waiting=stopped,
        still_pending=inbox.count_pending(connection, session.id),
        generation=session.generation + (order.effect == "new"),
    )
    return _Done(
        outcome=found, texts=texts, aside=aside, turn=(turn.number, turn.id) if turn else None
    )


def _take_up_waiting(
    connection: sqlite3.Connection, order: Order, session: SessionRow, now: int
) -> turns.TurnRow | None:
    """A turn of the rows that no turn has begun, to be closed at once: what was asked stays in
    the transcript. None where nothing waits."""
    rows = inbox.pending(connection, session.id, upto=None)
    if not rows:
        return None
    new = NewTurn(id=uuid4().hex, key=order.key, origin="bus")
    turn = turns.add(connection, new, session, now)
    inbox.claim(connection, turn.number, rows)
    messages = [transcripts.from_inbox(row, order.note(row)) for row in rows]
    transcripts.append(connection, turn, messages, now)
    return turn
