"""T6: one text on its way through its channel, part by part."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from teaagentd.errors import StoreError
from teaagentd.store import outbox, parts
from teaagentd.types import Part, Receipt

UNKNOWN_TWICE = "part {index} was sent twice and the outcome of neither is known"


def freeze(
    connection: sqlite3.Connection, outbound: int, texts: Sequence[str], *, now: int
) -> None:
    """Keep the cut of a text: what is sent again is cut the same. No-op where it is kept."""
    pending = outbox.pending_address(connection, outbound) is not None
    if pending and parts.freeze(connection, outbound, texts) and not texts:
        outbox.sent(connection, outbound, now)


def start_part(
    connection: sqlite3.Connection, outbound: int, index: int, *, idempotent: bool, now: int
) -> Part | None:
    """Mark a part as being sent, before it is. None when there is nothing to send: the text is
    sent or dead, or the part is sent, or its outcome is unknown for the second time on a
    channel that is not `idempotent`, which makes the text dead. Raises `StoreError` for a part
    that was never frozen."""
    address = outbox.pending_address(connection, outbound)
    if address is None:
        return None
    part = parts.find(connection, outbound, index)
    if part is None:
        raise StoreError(f"text {outbound} has no part {index}; nothing was changed")
    if part.state == "sent":
        return None
    repeats = part.repeats
    if part.state == "sending" and not idempotent:
        if repeats:
            outbox.dead(connection, outbound, UNKNOWN_TWICE.format(index=index), now)
            return None
        repeats = 1
    parts.sending(connection, outbound, index, repeats)
    return Part(
        outbound_id=outbound,
        index=index,
        address=address,
        content=part.content,
        idempotency_key=part.idempotency_key,
        possible_repeat=repeats > 0,
    )


def finish_part(
    connection: sqlite3.Connection, outbound: int, index: int, receipt: Receipt, *, now: int
) -> None:
    """Note the channel's receipt; the last one makes the text sent."""
    if parts.sent(connection, outbound, index, receipt.external_id):
        outbox.sent(connection, outbound, now)


def refuse(connection: sqlite3.Connection, outbound: int, reason: str, *, now: int) -> None:
    """The channel will never take it: a dead letter."""
    outbox.dead(connection, outbound, reason, now)


def delay(connection: sqlite3.Connection, outbound: int, index: int, *, until: int) -> None:
    """The part is known not to have been sent: it waits, and the text not before `until`."""
    parts.put_back(connection, outbound, index)
    outbox.delay(connection, outbound, until)
