"""The invariants: what must hold after each commit, when all is quiet, and at the end."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from teaagentd.agent.wording import ANSWER_IN_WORDS
from teaagentd.daemon import Daemon
from teaagentd.types import LLMMessage, LLMRequest, SessionKey
from tests.simulation.parts import Record

_TWICE = """
    SELECT value, count(*) FROM outbox, json_each(message_ids) GROUP BY value HAVING count(*) > 1
"""
_RUNNING = """
    SELECT session, count(*) FROM turns WHERE state = 'running' GROUP BY session HAVING count(*) > 1
"""


def after_commit(connection: sqlite3.Connection) -> Iterator[str]:
    """answered-once and one-live-turn, whatever was just written."""
    for row_id, count in connection.execute(_TWICE).fetchall():
        yield f"answered-once: message {row_id} stands in {count} texts"
    for session, count in connection.execute(_RUNNING).fetchall():
        yield f"one-live-turn: session {session} has {count}"


async def restless(daemon: Daemon) -> list[str]:
    """What is still to be done, in words; nothing when all is quiet."""
    depths = await daemon.store.depths()
    found = {
        "turns": len(daemon.loop.live()),
        "to be resumed": len(daemon.loop.line()),
        "running turns": len(await daemon.store.running_turns()),
        "pending messages": depths.inbox,
        "texts to be sent": depths.outbox,
        "background": daemon.loop._background,
        "lanes": len(daemon.loop._lanes),
        "held slots": daemon.gate.held,
        "waiting for slots": daemon.gate.waiting,
        "parked": daemon.gate.parked,
        "keys of the bus": len(daemon.bus._pending),
        "phases": len(daemon.feed.live()),
    }
    return [f"{count} {name}" for name, count in found.items() if count]


def at_the_end(path: Path, record: Record, acknowledged: Mapping[int, SessionKey]) -> Iterator[str]:
    """What must hold of a life that is over."""
    with closing(sqlite3.connect(path)) as file:
        yield from _kept_and_answered(file, acknowledged)
        yield from _folded_once(file)
        yield from _sound(file)
    yield from _sent(record)
    yield from _prefixes(record)


def _kept_and_answered(
    file: sqlite3.Connection, acknowledged: Mapping[int, SessionKey]
) -> Iterator[str]:
    states = dict(file.execute("SELECT id, state FROM inbox").fetchall())
    answers = Counter(
        row_id
        for (row_id,) in file.execute("SELECT value FROM outbox, json_each(message_ids)").fetchall()
    )
    for row_id in acknowledged:
        if row_id not in states:
            yield f"accepted-is-kept: message {row_id} is gone"
    for row_id, state in states.items():
        if answers[row_id] != 1:
            yield f"answered-once: message {row_id} ({state}) stands in {answers[row_id]} texts"
        if state in ("pending", "claimed"):
            yield f"message {row_id} is still {state}"


def _folded_once(file: sqlite3.Connection) -> Iterator[str]:
    placed = file.execute(
        "SELECT m.inbox, m.turn, i.turn, m.session, m.content, i.content FROM messages m "
        "JOIN inbox i ON i.id = m.inbox WHERE m.role = 'user' ORDER BY m.session, m.place"
    ).fetchall()
    times = Counter(row[0] for row in placed)
    order: dict[int, list[int]] = defaultdict(list)
    for row_id, turn, claimed_by, session, told, said in placed:
        order[session].append(row_id)
        if times[row_id] > 1:
            yield f"folded-once: message {row_id} is {times[row_id]} times in transcripts"
        if turn != claimed_by or told != said:
            yield f"folded-once: message {row_id} is in turn {turn}, claimed by {claimed_by}"
    for session, ids in order.items():
        if ids != sorted(ids):
            yield f"folded-once: session {session} was told {ids}, out of order"
    unplaced = file.execute(
        "SELECT id FROM inbox WHERE kind = 'message' AND turn IS NOT NULL "
        "AND id NOT IN (SELECT inbox FROM messages WHERE inbox IS NOT NULL)"
    ).fetchall()
    for (row_id,) in unplaced:
        yield f"folded-once: message {row_id} was claimed and stands in no transcript"


def _sound(file: sqlite3.Connection) -> Iterator[str]:
    for (problem,) in file.execute("PRAGMA integrity_check").fetchall():
        if problem != "ok":
            yield f"the file: {problem}"
    for row in file.execute("PRAGMA foreign_key_check").fetchall():
        yield f"the file: {row}"
    left = file.execute("SELECT call_id FROM calls WHERE state <> 'finished'").fetchall()
    if left:
        yield f"calls without a result: {left}"


def _sent(record: Record) -> Iterator[str]:
    """delivery: a part twice at most, the second one marked; the parts of a chat in order."""
    sends: dict[tuple[int, int], list[bool]] = defaultdict(list)
    by_chat: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for part, _ in record.sends:
        if part.address.channel == "dedup":
            continue
        sends[part.outbound_id, part.index].append(part.possible_repeat)
        if not part.possible_repeat:
            by_chat[part.address.chat_id].append((part.outbound_id, part.index))
    for name, repeats in sends.items():
        if len(repeats) > 2 or any(not repeat for repeat in repeats[1:]):
            yield f"delivery: part {name} was sent {len(repeats)} times, marked {repeats}"
    for chat, order in by_chat.items():
        if order != sorted(order):
            yield f"delivery: {chat} got its parts out of order: {order}"


def _prefixes(record: Record) -> Iterator[str]:
    """prefix-stable: each request of a session begins with the whole of the one before, until a
    summary or a new conversation; what is clipped or asked anew for one turn alone is exempt."""
    last: dict[tuple[str, int], tuple[LLMMessage, ...]] = {}
    for request in record.requests:
        if request.purpose != "turn" or request.tool_choice == "none":
            continue
        first = next((one for one in request.messages if one.role == "user"), None)
        if first is None or first.id is None or request.cache_key is None:
            continue
        name = request.cache_key, first.id
        said = tuple(
            replace(one, id=None, inbox_id=None)  # which no provider sees
            for one in request.messages[1:]
            if one.content != ANSWER_IN_WORDS
        )
        before = last.get(name, ())
        if said[: len(before)] != before and not _is_clipped(request, before):
            at = next(n for n, one in enumerate(before) if said[n : n + 1] != (one,))
            now = said[at : at + 1]
            yield f"prefix-stable: {name} changes message {at}: {before[at]} became {now}"
        last[name] = said


def _is_clipped(request: LLMRequest, before: tuple[LLMMessage, ...]) -> bool:
    texts = [one.content for one in (*request.messages, *before)]
    return any("characters are left out here" in text for text in texts)
