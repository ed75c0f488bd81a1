"""Answered once: whatever happens in whatever order, each message stands in exactly one text."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from teaagentd.errors import BusFull, ExternalIdConflict, StoreError, TurnEnded
from teaagentd.store import Store
from teaagentd.store.values import Begun, Closed, Folded
from teaagentd.transcript import legal, open_calls
from teaagentd.types import Address, InboundMessage, SessionKey
from tests.store.steps import (
    ManualClock,
    close_or_fold,
    command,
    database,
    decide,
    new_turn,
    no_note,
    result,
)

KEYS = [SessionKey(channel="api", chat_id="a"), SessionKey(channel="mail", chat_id="b")]
ADDRESSES = [Address(channel="api", chat_id="a"), Address(channel="mail", chat_id="b")]
STEPS = [
    *("accept", "accept", "accept", "begin", "begin", "direct", "decide", "start", "finish"),
    *("finish", "fold", "answer", "answer", "close", "stop", "new", "stop-outside", "resume"),
    *("park", "crash", "retry", "status"),
]


class World:
    """A store under random steps, and what those steps were told."""

    def __init__(self, path: Path, choose: random.Random) -> None:
        self.path = path
        self.choose = choose
        self.store: Store
        self.live: dict[SessionKey, str] = {}
        self.open: dict[str, list[str]] = {}
        self.accepted: set[int] = set()
        self.told: Counter[int] = Counter()
        self.number = 0

    async def open_store(self) -> None:
        self.store = await Store.open(self.path, clock=ManualClock(), max_pending=6)

    def message(self, content: str) -> InboundMessage:
        address = self.choose.choice(ADDRESSES)
        return InboundMessage(
            channel=address.channel,
            chat_id=address.chat_id,
            content=content,
            external_id=self.choose.choice([None, *"123456789"]),
            session_key=self.choose.choice(KEYS),
        )

    def note(self, outcome: Begun | Closed | Folded) -> None:
        for text in outcome.outbound:
            self.told.update(text.message_ids)

    async def take(self, step: str) -> None:
        self.number += 1
        key = self.choose.choice(KEYS)
        turn_id = self.live.get(key)
        match step:
            case "accept":
                with suppress(BusFull, ExternalIdConflict):
                    message = self.message(self.choose.choice(["one", "two"]))
                    self.accepted.add((await self.store.accept(message)).id)
            case "begin" | "direct":
                await self.begin(key, direct=step == "direct")
            case "stop" | "new" | "status":
                await self.command(key, step)
            case "stop-outside":
                done = await command(self.store, "stop", key)
                self.told.update(row for text in done.outbound for row in text.message_ids)
                self.live.pop(key, None)
            case "retry":
                for dead in await self.store.dead_rows(limit=1):
                    with suppress(BusFull):
                        self.accepted.add((await self.store.retry_dead(dead.id)).id)
            case "crash":
                await self.store.aclose()
                await self.open_store()
            case _ if turn_id is not None:
                with suppress(TurnEnded):
                    await self.work(step, key, turn_id)

    async def begin(self, key: SessionKey, *, direct: bool) -> None:
        to = self.choose.choice([None, *ADDRESSES])
        opening = "direct" if direct else None
        turn = new_turn(key, "cron" if direct else "bus", opening, to if direct else None)
        upto = self.choose.choice([None, *self.accepted])
        budget = self.choose.choice([None, 1, 100])
        begun = await self.store.begin(turn, upto=upto, budget_tokens=budget, note=no_note)
        if begun is not None:
            self.note(begun)
            self.live[key] = begun.turn_id

    async def command(self, key: SessionKey, step: str) -> None:
        effect = "none" if step == "status" else step
        message = self.message(f"/{step}")
        with suppress(ExternalIdConflict):
            done = await command(self.store, effect, message.key, message)  # type: ignore[arg-type]
            self.told.update(row for text in done.outbound for row in text.message_ids)
            assert done.id is not None
            self.accepted.add(done.id)
            if effect != "none" and not done.duplicate:
                self.live.pop(message.key, None)

    async def work(self, step: str, key: SessionKey, turn_id: str) -> None:
        calls = self.open.setdefault(turn_id, [])
        match step:
            case "decide":
                # Ids come round again, also within one decision.
                calls[:] = self.choose.choices("xyz", k=self.choose.randint(1, 3))
                await decide(self.store, turn_id, *calls, notice=self.choose.choice([None, "n"]))
            case "start" if calls:
                with suppress(StoreError):
                    await self.store.start_call(turn_id, self.choose.choice(calls))
            case "finish" if calls:
                call_id = calls.pop(self.choose.randrange(len(calls)))
                await self.store.finish_call(turn_id, result(call_id))
            case "fold":
                await self.store.fold(turn_id, upto=None, budget_tokens=100, note=no_note)
            case "answer":
                done = await close_or_fold(
                    self.store, turn_id, "answer", may_fold=self.choose.random() < 0.7, budget=50
                )
                calls.clear()
                self.ended(done, key)
            case "close":
                self.ended(
                    await self.store.close(turn_id, text="no", outcome="limit", attempts=()), key
                )
            case "resume":
                calls.clear()
                self.ended(await self.store.resume(turn_id, notice="again", failed="dead"), key)
            case "park":
                await self.store.park(turn_id)

    def ended(self, done: Begun | Closed | Folded, key: SessionKey) -> None:
        self.note(done)
        if isinstance(done, Closed):
            del self.live[key]

    def check(self) -> None:
        """What must hold after each step, as the file has it."""
        with database(self.path) as other:
            running = other.execute(
                "SELECT max(n) FROM (SELECT count(*) AS n FROM turns WHERE state = 'running' "
                "GROUP BY session)"
            ).fetchone()[0]
            texts = other.execute("SELECT message_ids FROM outbox").fetchall()
            ids = [row_id for (found,) in texts for row_id in json.loads(found)]
            rows = dict(other.execute("SELECT id, answer IS NOT NULL FROM inbox").fetchall())
            claimed_twice = other.execute(
                "SELECT inbox FROM messages WHERE inbox IS NOT NULL GROUP BY inbox "
                "HAVING count(*) > 1"
            ).fetchall()
        assert (running or 0) <= 1
        assert claimed_twice == []
        assert max(Counter(ids).values(), default=0) <= 1
        assert set(ids) == {row_id for row_id, answered in rows.items() if answered}
        assert Counter(ids) == self.told
        assert set(rows) == self.accepted

    async def check_transcripts(self) -> None:
        for key in KEYS:
            kept = await self.store.transcript(key, limit=10_000)
            if not kept:
                continue
            missing = open_calls(kept)
            # Legal but for an open last round: nothing has to be left out or reordered.
            filled = legal(kept)
            assert len(filled) == len(kept) + len(missing)
            inbox = [m.inbox_id for m in kept if m.inbox_id is not None]
            assert inbox == sorted(inbox)

    async def finish(self) -> None:
        """Come to rest: every message has its text."""
        for key in KEYS:
            for effect in ("stop", "stop"):
                done = await command(self.store, effect, key)  # type: ignore[arg-type]
                self.told.update(row for text in done.outbound for row in text.message_ids)
        assert set(self.told) == self.accepted
        assert set(self.told.values()) <= {1}


async def run(steps: list[str], seed: int, path: Path) -> None:
    world = World(path, random.Random(seed))
    await world.open_store()
    for step in steps:
        await world.take(step)
        world.check()
    await world.check_transcripts()
    await world.finish()
    world.check()
    await world.store.aclose()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 2**32))
def test_each_message_stands_in_exactly_one_text(steps: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(steps, seed, Path(folder) / "state.db"))
