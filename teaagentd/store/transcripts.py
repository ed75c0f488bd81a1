"""The table `messages`: each session's transcript, in the order a provider must be given it.

A message stands at a `place` of its session. The results of its calls share that place and
stand behind it by the calls' positions, whenever they came in. A summary stands before the first
message of the live history, at that one's place.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import orjson
import structlog

from teaagentd.store.codec import dump_attachments, dump_calls, load_attachments, load_calls
from teaagentd.store.recent import KnownHistory
from teaagentd.store.sessions import SessionRow
from teaagentd.store.turns import TurnRow
from teaagentd.store.values import Page
from teaagentd.transcript import SUMMARY_NOTE, clean_text
from teaagentd.types import InboxRow, LLMMessage, Role

log = structlog.get_logger()

_ADD = """
    INSERT INTO messages (session, turn, place, position, role, content, note, inbox, tool_calls,
        tool_call_id, name, raw, reasoning, thinking, model, attachments, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_SUMMARY = """
    INSERT INTO messages (session, turn, place, position, role, note, content, created_at)
    VALUES (?, ?, ?, -1, 'user', ?, ?, ?)
"""
_COLUMNS = """
    id, role, content, note, inbox, tool_calls, tool_call_id, name, raw, reasoning,
    thinking, model, attachments, place, position
"""
_HISTORY = f"""
    SELECT {_COLUMNS} FROM messages WHERE session = ? AND place >= ? ORDER BY place, position
"""
_HISTORY_AT_ONCE = """
    SELECT json_group_array(json_array(id, role, content, note, inbox, tool_calls, tool_call_id,
        name, raw, reasoning, thinking, model, attachments, place, position))
    FROM (SELECT * FROM messages WHERE session = ? AND place >= ? ORDER BY place, position)
"""
_KNOWN = """
    SELECT m.place, t.id, (
        SELECT count(*) FROM messages
        WHERE session = m.session AND place BETWEEN :from AND m.place
    ), (
        SELECT id FROM messages
        WHERE session = m.session AND place >= :from ORDER BY place, position LIMIT 1
    )
    FROM messages m JOIN turns t ON t.number = m.turn WHERE m.id = :id AND m.session = :session
"""
# The message that a page begins at may have been deleted since: then at what is left beside it.
_PAGE = f"""
    SELECT {_COLUMNS} FROM messages WHERE session = :session AND position >= 0
        AND (place, position) < (
            iif(:before IS NULL, :end, coalesce(
                (SELECT place FROM messages WHERE id = :before AND session = :session),
                (SELECT max(place) + 1 FROM messages WHERE session = :session AND id < :before)
            )),
            coalesce((SELECT position FROM messages WHERE id = :before AND session = :session), 0)
        )
    ORDER BY place DESC, position DESC LIMIT :limit
"""
_PAGE_AFTER = f"""
    SELECT {_COLUMNS} FROM messages WHERE session = :session AND position >= 0
        AND (place, position) > (
            iif(:after = 0, -1, coalesce(
                (SELECT place FROM messages WHERE id = :after AND session = :session),
                (SELECT min(place) FROM messages WHERE session = :session AND id > :after)
            )),
            coalesce((SELECT position FROM messages WHERE id = :after AND session = :session), -1)
        )
    ORDER BY place, position LIMIT :limit
"""
PAGE_CHARACTERS = 2_000_000
"""With so many, a page is full."""
_BY_ID = f"SELECT {_COLUMNS} FROM messages WHERE id = ?"
_NOTES = """
    SELECT note FROM messages
    WHERE session = ? AND place >= ? AND note IS NOT NULL ORDER BY place, position
"""
_FIRST = """
    SELECT id FROM messages WHERE session = ? AND place >= ? AND turn = ? AND position >= 0
    ORDER BY place, position LIMIT 1
"""
_LAST_PLACE = "SELECT max(place) FROM messages WHERE session = ?"
_END = 2**62

_Values: TypeAlias = tuple[
    int,
    Role,
    str,
    str | None,
    int | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    int,
    int,
]


def append(
    connection: sqlite3.Connection, turn: TurnRow, messages: Sequence[LLMMessage], now: int
) -> tuple[LLMMessage, ...]:
    """`messages` at the end of the turn's transcript, cleaned and with their ids. Those of an
    ephemeral turn are not kept and have none."""
    cleaned = tuple(_clean(message) for message in messages)
    if not turn.keeps_messages or not cleaned:
        return cleaned
    (last,) = connection.execute(_LAST_PLACE, (turn.session.id,)).fetchone()
    # Where the last ones were deleted, the live history may begin behind what is left.
    place = max((last or 0) + 1, turn.session.live_from)
    return tuple(
        _add(connection, turn, message, place + offset, 0, now)
        for offset, message in enumerate(cleaned)
    )


def add_summary(
    connection: sqlite3.Connection, session: int, turn: int, place: int, text: str, now: int
) -> None:
    """What was before `place`, told in one message in front of it. It is no part of the
    transcript as people see it."""
    connection.execute(_ADD_SUMMARY, (session, turn, place, SUMMARY_NOTE, clean_text(text), now))


def is_summary(message: LLMMessage) -> bool:
    """Whether `message` tells of what was before it."""
    return message.note == SUMMARY_NOTE


def append_result(
    connection: sqlite3.Connection,
    turn: TurnRow,
    message: LLMMessage,
    place: int,
    position: int,
    now: int,
) -> None:
    """A tool message behind the message that called, at its call's position."""
    if turn.keeps_messages:
        _add(connection, turn, _clean(message), place, position, now)


def place_of(connection: sqlite3.Connection, message: LLMMessage) -> int:
    """Where a kept message stands; 0 for one of an ephemeral turn."""
    if message.id is None:
        return 0
    (place,) = connection.execute(
        "SELECT place FROM messages WHERE id = ?", (message.id,)
    ).fetchone()
    return int(place)


def first_of(connection: sqlite3.Connection, turn: TurnRow) -> int | None:
    """The id of the first message of a turn in the live history; None if it has none there."""
    where = (turn.session.id, turn.session.live_from, turn.number)
    found = connection.execute(_FIRST, where).fetchone()
    return None if found is None else int(found[0])


def from_inbox(row: InboxRow, note: str | None) -> LLMMessage:
    """A claimed row as the user message that the model reads."""
    return LLMMessage(
        role="user",
        content=row.message.content,
        note=note,
        attachments=row.message.attachments,
        inbox_id=row.id,
    )


def history(
    connection: sqlite3.Connection, session: SessionRow, known: KnownHistory | None = None
) -> tuple[LLMMessage, ...]:
    """The live history. A row that cannot be read is there as a message that says so. What is
    `known` and still stands is not read again.

    It comes in one row: each step of a statement gives up the interpreter's lock, and beside a
    busy event loop a thread waits for it each time.
    """
    if known is not None and (place := _end_of(connection, session, known)) is not None:
        return (*known.messages, *_from_place(connection, session, place + 1))
    return _from_place(connection, session, session.live_from)


def _end_of(connection: sqlite3.Connection, session: SessionRow, known: KnownHistory) -> int | None:
    """The place of the last known message, if the live history begins with what is known."""
    where = {"id": known.messages[-1].id, "session": session.id, "from": session.live_from}
    found = connection.execute(_KNOWN, where).fetchone()
    stands = (known.turn_id, len(known.messages), known.messages[0].id)
    if found is None or found[1:] != stands:
        return None
    return int(found[0])


def _from_place(
    connection: sqlite3.Connection, session: SessionRow, place: int
) -> tuple[LLMMessage, ...]:
    where = (session.id, place)
    try:
        (text,) = connection.execute(_HISTORY_AT_ONCE, where).fetchone()
        rows: Iterable[_Values] = orjson.loads(text)
    except (sqlite3.OperationalError, ValueError):
        with broken_text_read(connection):
            rows = connection.execute(_HISTORY, where).fetchall()
    return tuple(_message(row) for row in rows)


def page(
    connection: sqlite3.Connection, session: SessionRow, *, limit: int, before: int | None
) -> Page:
    """The last `limit` messages before the one with id `before`, of every generation, in order
    and without notes; fewer of them where they are long."""
    where = {"session": session.id, "before": before, "limit": limit, "end": _END}
    found = _page(connection, _PAGE, where, limit)
    return replace(found, messages=found.messages[::-1])


def page_after(
    connection: sqlite3.Connection, session: SessionRow, *, limit: int, after: int
) -> Page:
    """The first `limit` messages after the one with id `after` (0: from the first one), as `page`
    gives them."""
    where: dict[str, int | None] = {"session": session.id, "after": after, "limit": limit}
    return _page(connection, _PAGE_AFTER, where, limit)


def _page(
    connection: sqlite3.Connection, sql: str, where: dict[str, int | None], limit: int
) -> Page:
    try:
        rows = _within_bounds(connection.execute(sql, where))
    except sqlite3.OperationalError:
        with broken_text_read(connection):
            rows = _within_bounds(connection.execute(sql, where))
    more = len(rows) == limit or sum(map(_size, rows)) >= PAGE_CHARACTERS
    messages = tuple(replace(_message(row), note=None) for row in rows)
    return Page(messages=messages, more=more)


def _within_bounds(rows: Iterable[_Values]) -> list[_Values]:
    """The first of `rows`, up to the one with which a page is full."""
    taken: list[_Values] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += _size(row)
        if size >= PAGE_CHARACTERS:
            break
    return taken


def _size(row: _Values) -> int:
    """Characters of the texts of a message."""
    return sum(len(value) for value in row if isinstance(value, str))


def by_id(connection: sqlite3.Connection, message: int) -> LLMMessage:
    """One message of a transcript, without its note."""
    row = connection.execute(_BY_ID, (message,)).fetchone()
    return replace(_message(row), note=None)


def notes(connection: sqlite3.Connection, session: SessionRow) -> tuple[str, ...]:
    """The notes of the live history, oldest first."""
    rows = connection.execute(_NOTES, (session.id, session.live_from))
    return tuple(note for (note,) in rows)


def _clean(message: LLMMessage) -> LLMMessage:
    """`message` without lone surrogates in its texts; the codec cleans the structured ones."""
    texts = (
        message.content,
        message.note,
        message.raw,
        message.reasoning,
        message.thinking,
        message.model,
        message.tool_call_id,
        message.name,
    )
    if all(text is None or clean_text(text) is text for text in texts):
        return message
    return replace(
        message,
        content=clean_text(message.content),
        note=_clean_optional(message.note),
        raw=_clean_optional(message.raw),
        reasoning=_clean_optional(message.reasoning),
        thinking=_clean_optional(message.thinking),
        model=_clean_optional(message.model),
        tool_call_id=_clean_optional(message.tool_call_id),
        name=_clean_optional(message.name),
    )


def _clean_optional(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _add(
    connection: sqlite3.Connection,
    turn: TurnRow,
    message: LLMMessage,
    place: int,
    position: int,
    now: int,
) -> LLMMessage:
    cursor = connection.execute(
        _ADD,
        (
            turn.session.id,
            turn.number,
            place,
            position,
            message.role,
            message.content,
            message.note,
            message.inbox_id,
            dump_calls(message.tool_calls),
            message.tool_call_id,
            message.name,
            message.raw,
            message.reasoning,
            message.thinking,
            message.model,
            dump_attachments(message.attachments),
            now,
        ),
    )
    return replace(message, id=cursor.lastrowid)


@contextmanager
def broken_text_read(connection: sqlite3.Connection) -> Iterator[None]:
    """Within, text that is no UTF-8 is read, too: its bad bytes become U+FFFD."""
    factory: Callable[[bytes], str] = connection.text_factory
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        yield
    finally:
        connection.text_factory = factory


def _message(row: _Values) -> LLMMessage:
    (
        row_id,
        role,
        content,
        note,
        inbox_id,
        tool_calls,
        tool_call_id,
        name,
        raw,
        reasoning,
        thinking,
        model,
        attachments,
        _,
        _,
    ) = row
    try:
        return LLMMessage(
            role=role,
            content=content,
            tool_calls=load_calls(tool_calls),
            tool_call_id=tool_call_id,
            name=name,
            note=note,
            raw=raw,
            reasoning=reasoning,
            thinking=thinking,
            model=model,
            attachments=load_attachments(attachments),
            id=row_id,
            inbox_id=inbox_id,
        )
    except ValueError as error:
        log.error("message_unreadable", message=row_id, error=str(error))
        return LLMMessage(
            role=role,
            content=f"{content}\n[part of message {row_id} in the store cannot be read]".strip(),
            tool_call_id=tool_call_id,
            name=name,
            note=note,
            id=row_id,
            inbox_id=inbox_id,
        )
