"""Store: the commit points T0 to T7 of a message's life, and what can be read beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from teaagentd.abc import Clock
from teaagentd.errors import TurnEnded
from teaagentd.store import (
    admission,
    delivery,
    inbox,
    lifecycle,
    outbox,
    rounds,
    sessions,
    transcripts,
    turns,
    usage,
)
from teaagentd.store.admission import Order
from teaagentd.store.database import Database
from teaagentd.store.lifecycle import Intake
from teaagentd.store.values import (
    Accepted,
    Begun,
    Closed,
    Commanded,
    CommandEffect,
    CommandOutcome,
    DeadRow,
    Depths,
    Folded,
    Letter,
    NewTurn,
    NoteRenderer,
    PendingKey,
    RunningTurn,
    SessionRecord,
    TurnRecord,
)
from teaagentd.store.writer import OnCommit
from teaagentd.types import (
    Address,
    Attempt,
    InboundMessage,
    InboxRow,
    LLMMessage,
    OutboundMessage,
    Part,
    Receipt,
    SessionKey,
    ToolResult,
    TurnOutcome,
)

PULL_CHANNELS = frozenset({"api", "terminal"})


class Store:
    """One home's state. Every method that writes is one transaction, committed when it returns.

    A caller that is cancelled still learns the outcome of its write; the cancellation is
    delivered at its next wait. Writes raise `StoreUnavailable` when the disk is full, read-only
    or failing, `StoreDamaged` when the file is; nothing of them was kept then, and the store
    goes on working once the cause is gone. What a turn writes after it was closed by someone
    else raises `TurnEnded`. Reads see what is committed and raise the same two.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        max_pending: int,
        pull_channels: frozenset[str],
    ) -> None:
        self._database = database
        self._write = database.write
        self._read = database.read
        self._now = clock.now_ms
        self._max_pending = max_pending
        self._pull = pull_channels

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        max_pending: int = 1000,
        pull_channels: frozenset[str] = PULL_CHANNELS,
        on_commit: OnCommit | None = None,
    ) -> Store:
        """The store in the file at `path`, made where there is none.

        `max_pending` bounds the unclaimed messages of all sessions together. On
        `pull_channels` a text is delivered by being there. `on_commit(name, "before" | "after")`
        is called in the writer's thread around each commit. Raises `StoreDamaged`,
        `StoreTooNew` or `StoreUnavailable`; what was there is then as it was.
        """
        database = Database(path, on_commit)
        await database.open()
        return cls(database, clock=clock, max_pending=max_pending, pull_channels=pull_channels)

    async def close(self) -> None:
        """Finish what was begun and close the file. Idempotent."""
        await self._database.close()

    # -- T0 and T7: what comes in -------------------------------------------------------

    async def accept(self, message: InboundMessage) -> Accepted:
        """T0. A message whose external id was accepted before with the same body is a no-op, also
        when the inbox is full. Raises `BusFull` and `ExternalIdConflict`."""
        return await self._write(
            "T0.accept",
            lambda connection: admission.accept(
                connection, message, max_pending=self._max_pending, now=self._now()
            ),
        )

    async def retry_dead(self, row_id: int) -> Accepted:
        """Accept a dead row anew, under a new id; a second time for the same row is a duplicate.
        Raises `BusFull`, and `StoreError` for a row that is not dead."""
        return await self._write(
            "T0.retry",
            lambda connection: admission.retry(
                connection, row_id, max_pending=self._max_pending, now=self._now()
            ),
        )

    async def command(
        self,
        message: InboundMessage | None,
        key: SessionKey,
        effect: CommandEffect,
        reply: Callable[[CommandOutcome], str],
        closing: str,
        note: NoteRenderer,
    ) -> Commanded:
        """T7. Deduplicated as `accept`, never refused for a full inbox.

        `stop` closes the running turn, and leaves what waits behind it; without one it closes
        what waits. `new` closes the running turn and begins a generation; what waits stays. The
        closed turn says `closing` to its addresses; the commander's own gets only `reply`, which
        answers its rows too. `message` None is a stop from outside: no row, no reply. `reply`
        and `note` run in the transaction. Raises `ExternalIdConflict`.
        """
        order = Order(
            key=sessions.clean_key(key), effect=effect, reply=reply, closing=closing, note=note
        )
        return await self._write(
            "T7.command",
            lambda connection: admission.command(
                connection, message, order, pull=self._pull, now=self._now()
            ),
        )

    # -- T1: a turn begins --------------------------------------------------------------

    async def begin(
        self, turn: NewTurn, *, upto: int | None, budget_tokens: int | None, note: NoteRenderer
    ) -> Begun | None:
        """T1. A bus turn claims pending rows with ids up to `upto`, oldest first: one at least,
        then as many as fit `budget_tokens` beside the history; None when nothing is pending.
        Any other appends its `opening`; an ephemeral one sees and leaves no history.

        A turn of the key that still stands as running is closed as interrupted; `outbound` of
        what is returned holds what its people were told.
        """
        intake = Intake(upto=upto, budget_tokens=budget_tokens, note=note)
        return await self._write(
            "T1.begin",
            lambda connection: lifecycle.begin(
                connection, turn, intake, pull=self._pull, now=self._now()
            ),
        )

    async def resume(self, turn_id: str, *, notice: str | None, failed: str) -> Begun | Closed:
        """T1 for a turn that the last process left running. The attempt is counted unless the
        turn was parked; open calls get a result that says what is known; `notice` goes to its
        addresses. Past three attempts it is closed as failed with the text `failed`, and its
        unanswered rows are dead. Raises `TurnEnded`."""
        return await self._write(
            "T1.resume",
            lambda connection: lifecycle.resume(
                connection, turn_id, notice=notice, failed=failed, pull=self._pull, now=self._now()
            ),
        )

    async def park(self, turn_id: str) -> None:
        """A planned shutdown: the next `resume` does not count. Raises `TurnEnded`."""
        await self._write("T1.park", lambda connection: lifecycle.park(connection, turn_id))

    # -- T2 and T3: rounds of calls -----------------------------------------------------

    async def decide(
        self,
        turn_id: str,
        message: LLMMessage,
        *,
        notice: str | None,
        attempts: Sequence[Attempt],
    ) -> tuple[OutboundMessage, ...]:
        """T2. The assistant's message with its calls, which are planned; `notice` goes to every
        address of the turn and is returned. Raises `TurnEnded`, `attempts` booked all the same."""
        texts = await self._write(
            "T2.decide",
            lambda connection: rounds.decide(
                connection,
                turn_id,
                message,
                notice=notice,
                attempts=attempts,
                pull=self._pull,
                now=self._now(),
            ),
        )
        if texts is None:
            raise TurnEnded(turn_id)
        return texts

    async def start_call(self, turn_id: str, call_id: str) -> None:
        """T3, before the call runs. Raises `TurnEnded`, and `StoreError` for a call that does not
        wait to be started."""
        await self._write(
            "T3.start",
            lambda connection: rounds.start_call(connection, turn_id, call_id, now=self._now()),
        )

    async def finish_call(self, turn_id: str, result: ToolResult) -> None:
        """T3. Results may come in any order; in the transcript they stand in that of the calls.
        Raises `TurnEnded`, and `StoreError` for a call that has its result."""
        await self._write(
            "T3.finish",
            lambda connection: rounds.finish_call(connection, turn_id, result, now=self._now()),
        )

    # -- T4 and T5: steering and the end ------------------------------------------------

    async def fold(
        self, turn_id: str, *, upto: int | None, budget_tokens: int | None, note: NoteRenderer
    ) -> Folded:
        """T4 between rounds: claims as `begin` does. Takes nothing in while a call is open.
        Raises `TurnEnded`."""
        intake = Intake(upto=upto, budget_tokens=budget_tokens, note=note)
        return await self._write(
            "T4.fold",
            lambda connection: lifecycle.fold(connection, turn_id, intake, now=self._now()),
        )

    async def close_or_fold(
        self,
        turn_id: str,
        message: LLMMessage,
        *,
        attempts: Sequence[Attempt],
        may_fold: bool,
        upto: int | None,
        budget_tokens: int | None,
        note: NoteRenderer,
    ) -> Folded | Closed:
        """T4 or T5: the model answered. If rows wait and the turn may take them, the answer is
        delivered as interim and they are claimed; else the turn closes with it. Raises
        `TurnEnded`, `attempts` booked all the same."""
        intake = Intake(upto=upto, budget_tokens=budget_tokens, note=note) if may_fold else None
        result = await self._write(
            "T4.close_or_fold",
            lambda connection: lifecycle.close_or_fold(
                connection,
                turn_id,
                message,
                intake,
                attempts=attempts,
                pull=self._pull,
                now=self._now(),
            ),
        )
        if result is None:
            raise TurnEnded(turn_id)
        return result

    async def close(  # type: ignore[no-redef]  # see below
        self,
    ) -> None: ...
