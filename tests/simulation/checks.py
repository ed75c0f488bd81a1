"""The invariants: what must hold after each commit, when all is quiet, and at the end."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from teaagentd.agent.wording import ANSWER_IN_WORDS
from teaagentd.daemon import Daemon
from teaagentd.types import InboundMessage, LLMMessage, LLMRequest, SessionKey
from tests.simulation.parts import Record

_ANSWERS = "SELECT outbox.id, value FROM outbox, json_each(message_ids)"
_RUNNING = """
    SELECT session, count(*) FROM turns WHERE state = 'running' GROUP BY session HAVING count(*) > 1
"""
_SPENT = """
    SELECT started_at / 86400000, sum(cost) / 10000000 FROM usage WHERE error IS NULL GROUP BY 1
"""
_BOOKED = """
    SELECT (SELECT count(*) FROM usage), (SELECT count(*) FROM reservations),
        (SELECT count(*) FROM usage WHERE error IS NULL)
"""
_WORDS = """
    SELECT 'inbox', content FROM inbox UNION ALL SELECT 'messages', content FROM messages
    UNION ALL SELECT 'outbox', content FROM outbox UNION ALL SELECT 'parts', content FROM parts
    UNION ALL SELECT 'usage', error FROM usage UNION ALL SELECT 'alerts', text FROM alerts
"""


@dataclass(frozen=True)
class Said:
    """A message that its client was told is accepted."""

    key: SessionKey
    message: InboundMessage


Gone = Callable[[Said], bool]
"""Whether an erasure takes a message."""


class Books:
    """What was accepted, which texts answered it, and what was taken away, over a whole life."""

    def __init__(self) -> None:
        self.said: dict[int, Said] = {}
        self.answers: dict[int, set[int]] = defaultdict(set)
        self._removals: list[tuple[int, int, Gone]] = []
        self.newest_at_sweeps: set[int] = set()
        self.cap_cents: int | None = None
        """What the requests of a day may cost."""
        self._before = self._newest = 0
        """The highest row before the last commit, and after it."""

    def acknowledged(self, row_id: int, key: SessionKey, message: InboundMessage) -> Iterator[str]:
        """A client was told so; row 0 is what was taken away before."""
        if row_id == 0:
            return
        known = self.said.setdefault(row_id, Said(key, message))
        if known.message.content != message.content:
            yield f"message {row_id} is {known.message.content!r} and {message.content!r}"

    def before_commit(self) -> None:
        """A transaction, of one operation or several, is about to be committed."""
        self._before = self._newest

    def after_commit(self, connection: sqlite3.Connection) -> Iterator[str]:
        """answered-once and one-live-turn, whatever was just written."""
        for outbound, row_id in connection.execute(_ANSWERS).fetchall():
            texts = self.answers[row_id]
            texts.add(outbound)
            if len(texts) > 1:
                yield f"answered-once: message {row_id} stands in the texts {sorted(texts)}"
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM inbox").fetchone()
        self._newest = max(newest, self._newest)
        for session, count in connection.execute(_RUNNING).fetchall():
            yield f"one-live-turn: session {session} has {count}"

        if self.cap_cents is not None:
            for day, cents in connection.execute(_SPENT).fetchall():
                # One request may pass it, and one that was let through before midnight.
                if cents > self.cap_cents + 2:
                    yield f"gate: {cents} cents were spent on day {day}"

    def swept(self, connection: sqlite3.Connection) -> None:
        """What was older than it need be kept is gone."""
        sql = "SELECT max(id) FROM inbox WHERE kind = 'message'"
        self.newest_at_sweeps.add(connection.execute(sql).fetchone()[0])

    def removed(self, takes: Gone) -> None:
        """An operator had messages taken away by the commit that was just looked at. It may be one
        of several operations in one transaction, and so is sure to take only what stood before."""
        self._removals.append((self._before, self._newest, takes))

    def gone(self, *, surely: bool) -> set[int]:
        """The messages that were taken away; without `surely` also those that may have been."""
        return {
            row_id
            for row_id, said in self.said.items()
            if any(
                row_id <= (before if surely else newest) and takes(said)
                for before, newest, takes in self._removals
            )
        }


class Watch:
    """one-live-turn and gate as the process has them, looked at in each round of its event loop."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._before = 0, 0

    def look(self) -> Iterator[str]:
        """What is wrong now. A cap that was lowered holds as turns end."""
        gate = self._daemon.gate
        held, limit = self._before
        if gate.held > gate.limit == limit and gate.held > held:
            yield f"gate: {gate.held} turns work, {gate.limit} may"
        self._before = gate.held, gate.limit
        live = self._daemon.loop.live()
        if len(live) > 1 and len({turn.key for turn in live}) < len(live):
            yield f"one-live-turn: {sorted(str(turn.key) for turn in live)}"


async def restless(daemon: Daemon) -> list[str]:
    """What is still to be done, in words; nothing when all is quiet."""
    depths = await daemon.store.depths()
    await daemon.spending.settle()  # as the monitor does
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


def _booked(file: sqlite3.Connection, record: Record) -> Iterator[str]:
    """booked: each request once, those that a kill cut off as an estimate."""
    [(booked, open_, answered)] = file.execute(_BOOKED).fetchall()
    asked = len(record.requests)
    if booked < asked or answered > asked or open_:
        yield (
            f"booked: of {asked} requests {booked} are booked, {answered} of them as answered, "
            f"{open_} open"
        )


def at_the_end(path: Path, record: Record, books: Books) -> Iterator[str]:
    """What must hold of a life that is over."""
    with closing(sqlite3.connect(path)) as file:
        yield from _kept_and_answered(file, books)
        yield from _folded_once(file, record, books)
        yield from _told(file, record)
        yield from _forgotten(file, record, books)
        yield from _sound(file)
        yield from _delivered(file, record)
        yield from _booked(file, record)
    yield from _sent(record)
    yield from _prefixes(record)


def _kept_and_answered(file: sqlite3.Connection, books: Books) -> Iterator[str]:
    states = dict(file.execute("SELECT id, state FROM inbox WHERE chat_id <> ''").fetchall())
    for row_id in (states.keys() | books.said.keys()) - books.gone(surely=False):
        texts = books.answers[row_id]
        if not texts and row_id not in states:
            yield f"accepted-is-kept: message {row_id} is gone"
        elif len(texts) != 1:
            yield f"answered-once: message {row_id} stands in {len(texts)} texts"
        if states.get(row_id) in ("pending", "claimed"):
            yield f"message {row_id} is still {states[row_id]}"


def _told(file: sqlite3.Connection, record: Record) -> Iterator[str]:
    """What a turn took in and answered was said to the model."""
    said = {one.content for request in record.requests for one in request.messages}
    sql = (
        "SELECT m.inbox, m.content FROM messages m JOIN turns t ON t.number = m.turn "
        "WHERE m.role = 'user' AND m.inbox IS NOT NULL AND t.outcome = 'answered'"
    )
    for row_id, content in file.execute(sql).fetchall():
        if content not in said:
            yield f"folded-once: message {row_id} was answered, and the model never saw it"


def _forgotten(file: sqlite3.Connection, record: Record, books: Books) -> Iterator[str]:
    """What was taken away stands nowhere any more, but where a turn of another session was told."""
    words = [(where, text) for where, text in file.execute(_WORDS).fetchall() if text]
    for row_id in books.gone(surely=True):
        said = books.said[row_id]
        mark = said.message.content
        if str(said.key) not in record.called and not mark.startswith("/"):
            yield from (
                f"erased: {mark!r} stands in {where}" for where, text in words if mark in text
            )


def _folded_once(file: sqlite3.Connection, record: Record, books: Books) -> Iterator[str]:
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
        if row_id in books.newest_at_sweeps or (books.newest_at_sweeps and "jump" in record.seen):
            # It tells where its owner was last, and stays when the history goes; one that came
            # before the clock was set back goes with the next sweep.
            continue
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


def _delivered(file: sqlite3.Connection, record: Record) -> Iterator[str]:
    """What is said to be sent was sent."""
    sent = {(part.outbound_id, part.index) for part, _ in record.sends}
    rows = file.execute(
        "SELECT o.id, p.position FROM outbox o JOIN parts p ON p.outbox = o.id "
        "WHERE o.state = 'sent' AND o.channel IN ('push', 'dedup')"
    ).fetchall()
    for outbound, index in rows:
        if (outbound, index) not in sent:
            yield f"delivery: part {index} of text {outbound} counts as sent, and was not"


def _sent(record: Record) -> Iterator[str]:
    """delivery: a part twice at most, the second one marked; the parts of a chat in order."""
    sends: dict[tuple[int, int], list[bool]] = defaultdict(list)
    by_chat: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for part, _ in record.sends:
        if part.address.channel == "dedup":
            continue
        sends[part.outbound_id, part.index].append(part.possible_repeat)
        if not part.possible_repeat and part.outbound_id not in record.again:
            by_chat[part.address.chat_id].append((part.outbound_id, part.index))
    for name, repeats in sends.items():
        most = len(repeats) if name[0] in record.again else 2
        if len(repeats) > most or any(not repeat for repeat in repeats[1:]):
            yield f"delivery: part {name} was sent {len(repeats)} times, marked {repeats}"
    for chat, order in by_chat.items():
        if order != sorted(order):
            yield f"delivery: {chat} got its parts out of order: {order}"


def _prefixes(record: Record) -> Iterator[str]:
    """prefix-stable: each request of a session begins with the whole of the one before, until a
    summary or a new conversation; what is clipped or asked anew for one turn alone is exempt."""
    last: dict[tuple[str, int], tuple[LLMMessage, ...]] = {}
    for number, request in enumerate(record.requests):
        if number in record.rewritten:
            last.clear()
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
