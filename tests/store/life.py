"""A life that passes every commit point, and what the file holds after each; killed on request.

python -m tests.store.life PATH      with TEAAGENTD_FAILPOINT as the daemon takes it
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path

from teaagentd.store import Store, failpoints
from teaagentd.store.erasure import Target
from teaagentd.store.values import Compaction, Payer
from teaagentd.store.writer import OnCommit
from teaagentd.types import Alert, Receipt, SessionKey
from tests.store.steps import (
    ManualClock,
    attempt,
    begin,
    close_or_fold,
    command,
    database,
    decide,
    new_turn,
    no_note,
    planned,
    result,
    said,
)

CHAT = SessionKey(channel="telegram", chat_id="7")
TABLES = (
    "sessions",
    "turns",
    "outbox",
    "parts",
    "inbox",
    "messages",
    "calls",
    "usage",
    "reservations",
    "forgotten",
)


async def live(store: Store) -> None:
    """Every commit point at least once."""
    await store.accept(said("go", chat_id="7", channel="telegram", external_id="e1"))
    turn = await begin(store, new_turn(CHAT, turn_id="first"))
    await store.park(turn.turn_id)
    await store.resume(turn.turn_id, notice="again", failed="f")
    payer = Payer(turn_id=turn.turn_id, key=CHAT)
    reserved = await store.books.reserve(planned(), (), payer, ())
    await store.books.settle((replace(attempt(), reservation=reserved.id),))
    await store.books.reserve(planned(), (), payer, ())
    await decide(store, turn.turn_id, "a", "b", notice="I look.")
    await store.start_call(turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a"))
    await store.start_call(turn.turn_id, "b")
    await store.finish_call(turn.turn_id, result("b"))
    await store.accept(said("more", chat_id="7", channel="telegram"))
    await store.fold(turn.turn_id, upto=None, budget_tokens=None, note=no_note)
    await store.accept(said("and more", chat_id="7", channel="telegram"))
    await close_or_fold(store, turn.turn_id, "interim")
    closed = await close_or_fold(store, turn.turn_id, "done")
    history = await store.live_history(CHAT)
    assert history is not None
    first, last = history.messages[0].id, history.messages[-2].id
    assert first is not None
    assert last is not None
    summary = Compaction(
        key=CHAT,
        generation=1,
        first_id=first,
        last_id=last,
        count=len(history.messages) - 1,
        summary="go on",
        turn_id=None,
    )
    assert await store.compact(summary, attempts=(attempt(),))
    letter = closed.outbound[0].id
    await store.freeze(letter, ["do", "ne"])
    await store.start_part(letter, 0, idempotent=False)
    await store.delay(letter, 0, until_ms=5)
    await store.start_part(letter, 0, idempotent=False)
    await store.finish_part(letter, 0, Receipt())
    await store.refuse(letter, "gone")
    await store.accept(said("poison"))
    poison = await begin(store, new_turn(turn_id="poison"))
    for _ in range(3):
        await store.resume(poison.turn_id, notice=None, failed="gave up")
    await store.retry_dead(poison.claimed[0].id)
    again = await begin(store, new_turn(turn_id="again"))
    await store.close(again.turn_id, text="no", outcome="limit", attempts=())
    await store.accept(said("a stranger's", chat_id="8", channel="telegram", sender_id="eve"))
    await store.revoke({"telegram": frozenset({"anna"})}, closing="no more")
    await store.books.resolve()
    await upkeep(store)
    await store.accept(said("unfinished"))
    await begin(store, new_turn(turn_id="unfinished"))
    await command(store, "new", message=said("/new", external_id="e2"))


async def upkeep(store: Store) -> None:
    """What an operator does with what is kept."""
    [letter] = await store.admin.outbox(limit=1)
    await store.admin.drop_letter(letter.id)
    await store.accept(said("first", chat_id="9", channel="telegram", external_id="e9"))
    own = SessionKey(channel="telegram", chat_id="9")
    turn = await begin(store, new_turn(own, turn_id="theirs"))
    closed = await close_or_fold(store, turn.turn_id, "answered")
    await store.refuse(closed.outbound[0].id, "gone")
    await store.admin.retry_letter(closed.outbound[0].id)
    waiting = await store.accept(said("second", chat_id="9", channel="telegram"))
    await store.admin.drop_row(waiting.id, text="not answered")
    await store.admin.delete_session(own)
    await store.accept(said("theirs", chat_id="10", channel="telegram", sender_id="kim"))
    await store.admin.erase(Target(sender="kim"))
    alert = Alert(kind="disk", subject="/", text="it is full", raised_at=5)
    await store.admin.raise_alert(alert, {"telegram"})
    await store.admin.clear_alert("disk", "/")
    await store.admin.note_sweep()
    await store.admin.choose(own, "spare")


async def live_in(path: Path, on_commit: OnCommit | None) -> None:
    store = await Store.open(path, clock=ManualClock(), on_commit=on_commit)
    await live(store)
    await store.aclose()


def dump(path: Path) -> list[list[tuple[object, ...]]]:
    """Every row of every table."""
    with database(path) as other:
        return [other.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES]


def run(path: str, failpoint: str) -> None:
    """The whole life in this process, which a fail point ends."""
    on_commit = failpoints.from_environment({failpoints.VARIABLE: failpoint})
    asyncio.run(live_in(Path(path), on_commit))


def killed_at(path: Path, failpoint: str) -> bool:
    """Run the life in a process of its own; whether the fail point killed it."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=run, args=(str(path), failpoint))
    process.start()
    process.join(30)
    assert process.exitcode is not None
    return process.exitcode == -9


if __name__ == "__main__":
    run(sys.argv[1], os.environ.get(failpoints.VARIABLE, ""))
