"""What can be read beside the commit points: sessions and transcripts, page by page."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from teaagentd.store import Store
from teaagentd.store.transcripts import PAGE_CHARACTERS
from teaagentd.types import SessionKey
from tests.store.steps import (
    KEY,
    ManualClock,
    close_or_fold,
    command,
    database,
    decide,
    result,
    said,
    started,
    told,
)

pytestmark = pytest.mark.anyio


def chat(number: int) -> SessionKey:
    return SessionKey(channel="api", chat_id=f"chat {number}")


async def test_sessions_are_listed_by_activity_page_by_page(
    store: Store, clock: ManualClock
) -> None:
    for number in range(5):
        clock.ms += number // 2  # some at the same instant
        turn = await started(store, "hi", key=chat(number))
        await close_or_fold(store, turn.turn_id, "hello")
    clock.ms += 1
    live = await started(store, "again", key=chat(1))
    await store.accept(said("and", chat_id="chat 1"))
    await command(store, "none", message=said("/help", chat_id="only a command"))
    pages = []
    before = None
    while page := await store.sessions(limit=2, before=before):
        pages.append([record.key.chat_id for record in page])
        before = page[-1].key
    assert pages == [["chat 1", "chat 4"], ["chat 3", "chat 2"], ["chat 0"]]
    first = (await store.sessions(limit=1))[0]
    assert (first.messages, first.pending, first.running_turn_id) == (3, 1, live.turn_id)
    assert (first.generation, first.active_at) == (1, clock.ms)


async def test_a_transcript_is_read_backwards_page_by_page(store: Store) -> None:
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a", "b")
    for call_id in ("b", "a"):
        await store.finish_call(turn.turn_id, result(call_id, call_id))
    await close_or_fold(store, turn.turn_id, "done")
    await command(store, "new")
    await close_or_fold(store, (await started(store, "more")).turn_id, "yes")
    whole = await store.transcript(KEY)
    assert told(whole) == [
        ("user", "go"),
        ("assistant", ""),
        ("tool", "a"),
        ("tool", "b"),
        ("assistant", "done"),
        ("user", "more"),
        ("assistant", "yes"),
    ]
    assert all(message.note is None for message in whole)
    paged = []
    before = None
    while page := await store.transcript(KEY, limit=3, before=before):
        paged = [*page, *paged]
        before = page[0].id
    assert tuple(paged) == whole
    assert await store.transcript(SessionKey(channel="api", chat_id="unknown")) == ()


async def test_replies_come_in_order_and_can_be_taken_up_after_one(store: Store) -> None:
    for number in range(4):
        await close_or_fold(store, (await started(store, "q")).turn_id, f"a{number}")
    first = await store.replies(KEY, after=0, limit=2)
    rest = await store.replies(KEY, after=first[-1].id)
    assert [text.content for text in (*first, *rest)] == ["a0", "a1", "a2", "a3"]
    assert await store.replies(chat(9), after=0) == ()


async def test_reads_go_on_beside_one_another_and_beside_writes(store: Store) -> None:
    turn = await started(store, "hi")
    seen: list[int] = []

    async def read() -> None:
        for _ in range(20):
            seen.append(len(await store.transcript(KEY)))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(read)
        for number in range(20):
            await decide(store, turn.turn_id, f"c{number}")
    assert len(seen) == 100
    assert len(await store.transcript(KEY)) == 1 + 20 + 19


async def test_a_read_that_fails_says_so_and_the_next_one_works(store: Store, path: Path) -> None:
    await close_or_fold(store, (await started(store, "hi")).turn_id, "hello")
    with database(path) as other:
        other.execute("ALTER TABLE outbox RENAME TO elsewhere")
    with pytest.raises(Exception, match="outbox"):
        await store.replies(KEY, after=0)
    with database(path) as other:
        other.execute("ALTER TABLE elsewhere RENAME TO outbox")
    assert len(await store.replies(KEY, after=0)) == 1


async def test_a_page_of_replies_is_bounded_by_what_they_hold(path: Path) -> None:
    store = await Store.open(path, clock=ManualClock())
    for number in range(3):
        turn = await started(store, f"m{number}")
        await close_or_fold(store, turn.turn_id, str(number) * (PAGE_CHARACTERS * 2 // 3))
    first = await store.replies(KEY, after=0)
    assert [text.content[0] for text in first] == ["0", "1"]
    rest = await store.replies(KEY, after=first[-1].id)
    assert [text.content[0] for text in rest] == ["2"]
    assert [text.id for text in await store.replies(None, after=0)] == [one.id for one in first]
    await store.aclose()
