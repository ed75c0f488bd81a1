"""How a turn speaks and how it ends, inside whatever transaction does it."""

from __future__ import annotations

import sqlite3

from teaagentd.store import calls, inbox, outbox, transcripts, turns
from teaagentd.store.turns import TurnRow
from teaagentd.types import Address, LLMMessage, OutboundKind, OutboundMessage, TurnOutcome


def say(
    connection: sqlite3.Connection,
    turn: TurnRow,
    kind: OutboundKind,
    text: str,
    *,
    pull: frozenset[str],
    now: int,
    apart: Address | None = None,
) -> tuple[tuple[OutboundMessage, ...], tuple[int, ...]]:
    """`text` to every address of the turn: those whose rows it claimed, and the one it was begun
    for. A notice answers nothing; any other kind answers the address's rows that no text
    answered before. `apart` is left out: its rows are returned, for a text of its own.
    """
    waiting = inbox.unanswered_by_address(connection, turn.number)
    if turn.deliver_to is not None:
        waiting.setdefault(turn.deliver_to, ())
    aside = waiting.pop(apart, ()) if apart is not None else ()
    texts = tuple(
        outbox.add(
            connection,
            session=turn.session.id,
            key=turn.key,
            turn=(turn.number, turn.id),
            address=address,
            kind=kind,
            content=text,
            answers=() if kind == "notice" else rows,
            pull=address.channel in pull,
            now=now,
        )
        for address, rows in waiting.items()
    )
    return texts, aside


def end(
    connection: sqlite3.Connection,
    turn: TurnRow,
    message: LLMMessage,
    outcome: TurnOutcome,
    *,
    pull: frozenset[str],
    now: int,
    apart: Address | None = None,
) -> tuple[tuple[OutboundMessage, ...], tuple[int, ...]]:
    """Close `turn` with `message` as its last word. Open calls get their results first, so the
    transcript is legal. Returns as `say` does."""
    calls.close_all(connection, turn, now)
    transcripts.append(connection, turn, (message,), now)
    spoken = say(connection, turn, "final", message.content, pull=pull, now=now, apart=apart)
    turns.end(connection, turn, outcome, now)
    return spoken


def last_word(text: str) -> LLMMessage:
    """The assistant's message of a turn that ends otherwise than with an answer."""
    return LLMMessage(role="assistant", content=text)
