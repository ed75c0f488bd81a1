"""The table `parts`: the pieces a text was cut into at its first send, and what became of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from teaagentd.store.values import LetterPart, PartState
from teaagentd.transcript import clean_text

_COUNT = "SELECT count(*) FROM parts WHERE outbox = ?"
_ADD = "INSERT INTO parts (outbox, position, content) VALUES (?, ?, ?)"
_ALL = "SELECT position, content, state, repeats FROM parts WHERE outbox = ? ORDER BY position"
_FIND = """
    SELECT p.content, p.state, p.repeats, (SELECT uid FROM store) FROM parts p
    WHERE p.outbox = ? AND p.position = ?
"""
_SENDING = "UPDATE parts SET state = 'sending', repeats = ? WHERE outbox = ? AND position = ?"
_SENT = "UPDATE parts SET state = 'sent', external_id = ? WHERE outbox = ? AND position = ?"
_PENDING = """
    UPDATE parts SET state = 'pending' WHERE outbox = ? AND position = ? AND state = 'sending'
"""
_LEFT = "SELECT count(*) FROM parts WHERE outbox = ? AND state <> 'sent'"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRow:
    """A part as a transaction finds it. The key is unique among all homes, for servers that
    remember the keys of all who use one account."""

    content: str
    state: PartState
    repeats: int
    idempotency_key: str


def freeze(connection: sqlite3.Connection, outbound: int, texts: Sequence[str]) -> bool:
    """Keep `texts` as the parts of `outbound`. False, and nothing changes, if it has some."""
    (count,) = connection.execute(_COUNT, (outbound,)).fetchone()
    if count:
        return False
    for position, text in enumerate(texts):
        connection.execute(_ADD, (outbound, position, clean_text(text)))
    return True


def frozen(connection: sqlite3.Connection, outbound: int) -> tuple[LetterPart, ...]:
    """The parts of `outbound` in order; empty until its first send."""
    return tuple(
        LetterPart(index=position, content=content, state=state, repeats=repeats)
        for position, content, state, repeats in connection.execute(_ALL, (outbound,)).fetchall()
    )


def find(connection: sqlite3.Connection, outbound: int, index: int) -> PartRow | None:
    row = connection.execute(_FIND, (outbound, index)).fetchone()
    if row is None:
        return None
    content, state, repeats, uid = row
    return PartRow(
        content=content,
        state=state,
        repeats=repeats,
        idempotency_key=f"{uid}-{outbound}-{index}",
    )


def sending(connection: sqlite3.Connection, outbound: int, index: int, repeats: int) -> None:
    connection.execute(_SENDING, (repeats, outbound, index))


def sent(
    connection: sqlite3.Connection, outbound: int, index: int, external_id: str | None
) -> bool:
    """Note that a part was taken; True when it was the last one."""
    known = None if external_id is None else clean_text(external_id)
    connection.execute(_SENT, (known, outbound, index))
    (left,) = connection.execute(_LEFT, (outbound,)).fetchone()
    return not left


def put_back(connection: sqlite3.Connection, outbound: int, index: int) -> None:
    """It is known not to have been sent: it waits to be sent again."""
    connection.execute(_PENDING, (outbound, index))
