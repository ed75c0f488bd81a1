"""Store: the commit points T0 to T8 of a message's life, and what can be read beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from teaagentd.abc import Clock
from teaagentd.errors import TurnEnded
from teaagentd.store import (
    admission,
    compacting,
    delivery,
    inbox,
    lifecycle,
    outbox,
    revoking,
    rounds,
    sessions,
    transcripts,
    turns,
)
from teaagentd.store.admin import StoreAdmin
from teaagentd.store.admission import Order
from teaagentd.store.books import StoreBooks
from teaagentd.store.database import Database
from teaagentd.store.lifecycle import Intake
from teaagentd.store.recent import RecentHistories
from teaagentd.store.revoking import Revoked
from teaagentd.store.totals import Counting, Totals
from teaagentd.store.values import (
    Accepted,
    Begun,
    Choice,
    Closed,
    Commanded,
    CommandEffect,
    CommandOutcome,
    Compaction,
    DeadRow,
    Depths,
    Folded,
    Letter,
    LiveHistory,
    NewTurn,
    NoteRenderer,
    PendingKey,
    RunningTurn,
    SessionRecord,
    TurnRecord,
)
from teaagentd.store.writer import OnCommit
from teaagentd.transcript import clean_key
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
        self.max_pending = max_pending
        """How many unclaimed messages are kept; more are refused. May be changed at any time."""
        self._pull = pull_channels
        self._recent = RecentHistories()
        self.admin = StoreAdmin(
            database, clock=clock, pull_channels=pull_channels, recent=self._recent
        )
        self.books = StoreBooks(database)
        self._counting = Counting()
        self._counts = anyio.Lock()

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

    async def aclose(self) -> None:
        """Finish what was begun and close the file. Idempotent."""
        await self._database.close()

    async def ping(self) -> None:
        """Return once the writer's thread has come to it: proof that it is alive. Raises
        `StoreUnavailable` when it is not. Can be cancelled."""
        await self._database.ping()

    # -- T0 and T7: what comes in -------------------------------------------------------

    async def accept(self, message: InboundMessage) -> Accepted:
        """T0. A message whose external id was accepted before with the same body is a no-op, also
        when the inbox is full. Raises `BusFull` and `ExternalIdConflict`."""
        return await self._write(
            "T0.accept",
            lambda connection: admission.accept(
                connection, message, max_pending=self.max_pending, now=self._now()
            ),
        )

    async def retry_dead(self, row_id: int) -> Accepted:
        """Accept a dead row anew, under a new id; a second time for the same row is a duplicate.
        Raises `BusFull`, and `StoreError` for a row that is not dead."""
        return await self._write(
            "T0.retry",
            lambda connection: admission.retry(
                connection, row_id, max_pending=self.max_pending, now=self._now()
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
        *,
        choice: Choice | None = None,
    ) -> Commanded:
        """T7. Deduplicated as `accept`, never refused for a full inbox.

        `stop` closes the running turn, and leaves what waits behind it; without one it closes
        what waits. `new` closes the running turn and begins a generation; what waits stays. The
        closed turn says `closing` to its addresses; the commander's own gets only `reply`, which
        answers its rows too. `message` None is a stop from outside: no row, no reply. `reply`
        and `note` run in the transaction. Raises `ExternalIdConflict`.
        """
        order = Order(
            key=clean_key(key),
            effect=effect,
            reply=reply,
            closing=closing,
            note=note,
            choice=choice,
        )
        return await self._write(
            "T7.command",
            lambda connection: admission.command(
                connection, message, order, pull=self._pull, now=self._now()
            ),
        )

    async def revoke(self, allowed: Mapping[str, frozenset[str]], *, closing: str) -> Revoked:
        """T7. `allowed` holds, for each channel that is not open to everyone, who may speak. What
        waits from others is set aside as dead, and the running turns that took in something of
        them are closed with `closing`."""
        return await self._write(
            "T7.revoke",
            lambda connection: revoking.revoke(
                connection, allowed, closing=closing, pull=self._pull, now=self._now()
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
        known = self._recent.get(turn.key)
        begun = await self._write(
            "T1.begin",
            lambda connection: lifecycle.begin(
                connection, turn, intake, known=known, pull=self._pull, now=self._now()
            ),
        )
        if begun is not None:
            self._recent.keep(begun)
        return begun

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

    async def park(self, turn_id: str, *, attempts: Sequence[Attempt] = ()) -> None:
        """A planned shutdown: the next `resume` does not count. Raises `TurnEnded`."""
        await self._write(
            "T1.park", lambda connection: lifecycle.park(connection, turn_id, attempts)
        )
        self._booked(attempts)

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
        self._booked(attempts)
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
        self._booked(attempts)
        if result is None:
            raise TurnEnded(turn_id)
        return result

    async def close(
        self, turn_id: str, *, text: str, outcome: TurnOutcome, attempts: Sequence[Attempt]
    ) -> Closed:
        """T5: every exit but an answer. Open calls get results that say what is known, then
        `text` is the turn's last word, to each of its addresses. Rows that wait stay. Raises
        `TurnEnded`, `attempts` booked all the same."""
        closed = await self._write(
            "T5.close",
            lambda connection: lifecycle.close(
                connection,
                turn_id,
                text=text,
                outcome=outcome,
                attempts=attempts,
                pull=self._pull,
                now=self._now(),
            ),
        )
        self._booked(attempts)
        if closed is None:
            raise TurnEnded(turn_id)
        return closed

    # -- T6: delivery -------------------------------------------------------------------

    async def freeze(self, outbound_id: int, parts: Sequence[str]) -> None:
        """T6, before the first send: how the text is cut, once. No-op where that is kept."""
        await self._write(
            "T6.freeze",
            lambda connection: delivery.freeze(connection, outbound_id, parts, now=self._now()),
        )

    async def start_part(self, outbound_id: int, index: int, *, idempotent: bool) -> Part | None:
        """T6, before the channel's call. A part whose last outcome is unknown is given once more,
        ever, as a possible repeat; then the text is dead. On an `idempotent` channel it is given
        again under the same key. None when there is nothing to send. Raises `StoreError` for a
        part that was never frozen."""
        return await self._write(
            "T6.start",
            lambda connection: delivery.start_part(
                connection, outbound_id, index, idempotent=idempotent, now=self._now()
            ),
        )

    async def finish_part(self, outbound_id: int, index: int, receipt: Receipt) -> None:
        """T6, after the channel took it. With the last part the text is sent."""
        await self._write(
            "T6.finish",
            lambda connection: delivery.finish_part(
                connection, outbound_id, index, receipt, now=self._now()
            ),
        )

    async def refuse(self, outbound_id: int, reason: str) -> None:
        """T6: a permanent refusal makes the text a dead letter."""
        await self._write(
            "T6.refuse",
            lambda connection: delivery.refuse(connection, outbound_id, reason, now=self._now()),
        )

    async def delay(self, outbound_id: int, index: int, *, until_ms: int) -> None:
        """T6: the part was not sent; it waits again, and the text not before `until_ms`."""
        await self._write(
            "T6.delay",
            lambda connection: delivery.delay(connection, outbound_id, index, until=until_ms),
        )

    # -- T8: the history is made shorter ------------------------------------------------

    async def compact(
        self, compaction: Compaction | None, *, attempts: Sequence[Attempt] = ()
    ) -> bool:
        """T8. The summary takes the place of what it tells of; the transcript keeps that. False,
        and nothing but `attempts` booked, if the history has changed its beginning meanwhile or
        another turn is at work on it, or if none came of the attempts."""
        done = await self._write(
            "T8.compact",
            lambda connection: compacting.compact(
                connection, compaction, attempts=attempts, now=self._now()
            ),
        )
        self._booked(attempts)
        return done

    def _booked(self, attempts: Sequence[Attempt]) -> None:
        if attempts:
            self.books.on_booked()

    # -- reads --------------------------------------------------------------------------

    async def undelivered(self, channel: str) -> tuple[Letter, ...]:
        """What `channel` has not taken whole, oldest first."""
        return await self._read(lambda connection: outbox.undelivered(connection, channel))

    async def undelivered_channels(self) -> tuple[str, ...]:
        """The channels that `undelivered` has something for, configured or not."""
        return await self._read(outbox.channels)

    async def chosen(self, key: SessionKey | None) -> str | None:
        """The model that is asked first in a session, or in those that have chosen none."""

        def read(connection: sqlite3.Connection) -> str | None:
            session = sessions.find(connection, key) if key is not None else None
            return sessions.chosen(connection, session.id if session else None)

        return await self._read(read)

    async def replies(
        self, key: SessionKey | None, *, after: int, limit: int = 100
    ) -> tuple[OutboundMessage, ...]:
        """Texts of the session, or of all, with ids past `after`, oldest first."""
        if key is None:
            return await self._read(
                lambda connection: outbox.all_replies(connection, after=after, limit=limit)
            )
        return await self._read(
            lambda connection: outbox.replies(connection, key, after=after, limit=limit)
        )

    async def newest_reply(self) -> int:
        """The id of the newest text; 0 where there is none."""
        return await self._read(outbox.newest)

    async def pending_keys(self) -> tuple[PendingKey, ...]:
        """Sessions with unclaimed messages; the one that waits longest comes first."""
        return await self._read(inbox.pending_keys)

    async def pending_rows(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """The session's unclaimed messages, oldest first."""

        def read(connection: sqlite3.Connection) -> tuple[InboxRow, ...]:
            session = sessions.find(connection, key)
            return inbox.pending(connection, session.id, upto=None) if session else ()

        return await self._read(read)

    async def running_turns(self) -> tuple[RunningTurn, ...]:
        """Turns that stand as running, in the order they began."""
        return await self._read(turns.running)

    async def last_address(self) -> Address | None:
        """Where the newest message (not command) came from."""
        return await self._read(inbox.last_address)

    async def notes(self, key: SessionKey) -> tuple[str, ...]:
        """The notes beside the messages of the session's live history, oldest first."""

        def read(connection: sqlite3.Connection) -> tuple[str, ...]:
            session = sessions.find(connection, key)
            return transcripts.notes(connection, session) if session else ()

        return await self._read(read)

    async def sessions(
        self, *, limit: int = 100, before: SessionKey | None = None
    ) -> tuple[SessionRecord, ...]:
        """Sessions, the latest active first; `before` is the last one of an earlier page."""
        return await self._read(
            lambda connection: sessions.records(connection, limit=limit, before=before)
        )

    async def transcript(
        self, key: SessionKey, *, limit: int = 100, before: int | None = None
    ) -> tuple[LLMMessage, ...]:
        """The last `limit` messages before the one with id `before` (None: the newest), in
        order, of every generation, without notes."""

        def read(connection: sqlite3.Connection) -> tuple[LLMMessage, ...]:
            session = sessions.find(connection, key)
            if session is None:
                return ()
            found = transcripts.page(connection, session, limit=limit, before=before)
            return found.messages

        return await self._read(read)

    async def live_history(self, key: SessionKey) -> LiveHistory | None:
        """What the model would be shown of a session now; None for one that does not exist."""

        def read(connection: sqlite3.Connection) -> LiveHistory | None:
            session = sessions.find(connection, key)
            if session is None:
                return None
            messages = transcripts.history(connection, session)
            running = turns.running_in(connection, session.id)
            first = transcripts.first_of(connection, running) if running is not None else None
            ids = [message.id for message in messages]
            settled = ids.index(first) if first in ids else len(ids)
            return LiveHistory(
                generation=session.generation,
                messages=messages,
                settled=settled,
                model=sessions.chosen(connection, session.id),
            )

        return await self._read(read)

    async def totals(self) -> Totals:
        """What was counted since the file was made. Takes as long as there is news since the
        last call."""
        async with self._counts:
            return await self._read(self._counting.count)

    async def depths(self) -> Depths:
        """How full the queues are now."""
        now = self._now()

        def read(connection: sqlite3.Connection) -> Depths:
            waiting, oldest_row = inbox.depth(connection)
            letters, oldest_letter = outbox.depth(connection)
            return Depths(
                inbox=waiting,
                inbox_oldest_ms=None if oldest_row is None else max(now - oldest_row, 0),
                outbox=letters,
                outbox_oldest_ms=None if oldest_letter is None else max(now - oldest_letter, 0),
                dead_rows=inbox.count_dead(connection),
                dead_letters=outbox.count_dead(connection),
            )

        return await self._read(read)

    async def dead_rows(self, *, limit: int = 100) -> tuple[DeadRow, ...]:
        """Messages whose turn failed for good and that were not retried, the newest first."""
        return await self._read(lambda connection: inbox.dead(connection, limit=limit))

    async def turn(self, turn_id: str) -> TurnRecord | None:
        """One turn with the sum of its usage; None if there is no such turn."""
        return await self._read(lambda connection: turns.record(connection, turn_id))
