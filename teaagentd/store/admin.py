"""StoreAdmin: what an operator does with what is kept, beside the life of messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import structlog

from teaagentd.abc import Clock
from teaagentd.errors import StoreDamaged
from teaagentd.store import (
    alerts,
    desk,
    erasure,
    outbox,
    removal,
    retention,
    sessions,
    snapshot,
    transcripts,
)
from teaagentd.store.database import Database
from teaagentd.store.erasure import Target
from teaagentd.store.opening import RESCUED
from teaagentd.store.recent import RecentHistories
from teaagentd.store.values import Found, InboxEntry, OutboxEntry, Page, Removed, SessionRecord
from teaagentd.types import Alert, AlertKind, OutboundMessage, SessionKey

log = structlog.get_logger()

_EVERY = 2**62
_FREE_KEPT, _FREED_AT_ONCE = 64, 200
"""Pages."""
_INCREMENTAL = 2

Breathe = Callable[[], Awaitable[None]]
T = TypeVar("T")


class StoreAdmin:
    """Reached as `Store.admin`. Every method that writes is one transaction, as those of the
    store are, and raises what they raise; `StoreError` where what is asked cannot be done."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        pull_channels: frozenset[str],
        recent: RecentHistories,
    ) -> None:
        self._database = database
        self._now = clock.now_ms
        self._pull = pull_channels
        self._recent = recent

    # -- reads --------------------------------------------------------------------------

    @property
    def damage(self) -> StoreDamaged | None:
        """What was met of a file that something else has written over; None while all is well."""
        return self._database.damage

    def on_damage(self, call: Callable[[], None]) -> None:
        """Have `call` called when such a thing is met first."""
        self._database.on_damage = call

    async def inbox(self, *, limit: int = 100, before: int | None = None) -> Sequence[InboxEntry]:
        """What waits to be answered and what was set aside, the newest first."""
        return await self._database.read(
            lambda connection: desk.inbox_entries(connection, limit=limit, before=before or _EVERY)
        )

    async def outbox(self, *, limit: int = 100, before: int | None = None) -> Sequence[OutboxEntry]:
        """What waits to be delivered and what was given up, the newest first."""
        return await self._database.read(
            lambda connection: desk.outbox_entries(connection, limit=limit, before=before or _EVERY)
        )

    async def search(
        self, text: str, *, limit: int = 100, before: int | None = None
    ) -> tuple[Sequence[Found], int | None]:
        """Messages of transcripts that hold `text`, the newest first, and the `before` with which
        to go on, None at the end. One call reads a bounded stretch: it may find nothing and
        still not be at the end."""
        return await self._database.read(
            lambda connection: desk.search(connection, text, limit=limit, before=before)
        )

    async def sessions_as_made(self, *, after: int, limit: int = 100) -> Sequence[SessionRecord]:
        """Sessions with numbers above `after`, in the order they were made in, whatever is said
        meanwhile."""
        return await self._database.read(
            lambda connection: sessions.records(connection, limit=limit, before=None, after=after)
        )

    async def transcript(
        self,
        key: SessionKey,
        *,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
    ) -> Page | None:
        """The last messages of a session before the one with id `before`, or the first ones after
        that with id `after` (0: from its beginning), of every generation, without notes; None for
        a session that there is not."""

        def read(connection: sqlite3.Connection) -> Page | None:
            session = sessions.find(connection, key)
            if session is None:
                return None
            if after is not None:
                return transcripts.page_after(connection, session, limit=limit, after=after)
            return transcripts.page(connection, session, limit=limit, before=before)

        return await self._database.read(read)

    async def named_files(self) -> Collection[str]:
        """The files that a message names, wherever it stands."""
        return await self._database.read(desk.named_files)

    # -- writes -------------------------------------------------------------------------

    async def drop_row(
        self, row_id: int, *, text: str
    ) -> tuple[SessionKey, Sequence[OutboundMessage]]:
        """A message that waits is answered with `text` instead of a turn; a dead one is no longer
        listed. Its session, and what was said."""
        return await self._database.write(
            "A1.drop_row",
            lambda connection: removal.drop_row(
                connection, row_id, text=text, pull=self._pull, now=self._now()
            ),
        )

    async def retry_letter(self, outbound_id: int) -> str:
        """Have a dead letter delivered again; the channel, which is to be kicked."""
        return await self._database.write(
            "A2.retry_letter",
            lambda connection: removal.retry_letter(connection, outbound_id),
        )

    async def drop_letter(self, outbound_id: int) -> None:
        """Have a text delivered no more."""
        await self._database.write(
            "A3.drop_letter",
            lambda connection: removal.drop_letter(connection, outbound_id, self._now()),
        )

    async def delete_session(self, key: SessionKey, *, only_count: bool = False) -> Removed:
        """Delete everything of a session; what it comes to. With `only_count` nothing is done."""
        return await self._remove(
            "A4.delete_session",
            lambda connection: removal.delete_session(
                connection, key, only_count=only_count, now=self._now()
            ),
            only_count=only_count,
        )

    async def erase(self, target: Target, *, only_count: bool = False) -> Removed:
        """Erase what is known of one person or chat; what it comes to. With `only_count` nothing
        is done."""
        return await self._remove(
            "A5.erase",
            lambda connection: erasure.erase(
                connection, target, only_count=only_count, now=self._now()
            ),
            only_count=only_count,
        )

    # -- retention ----------------------------------------------------------------------

    async def newest_at(self) -> int:
        """When the newest message was accepted, in milliseconds; 0 before the first one."""
        return await self._database.read(retention.newest)

    async def swept_at(self) -> int | None:
        """When old rows were looked for last."""
        return await self._database.read(retention.swept)

    async def choose(self, key: SessionKey | None, model: str | None) -> None:
        """Have a model asked first in one session, or in all, whatever they chose; None is as
        configured."""

        def write(connection: sqlite3.Connection) -> None:
            session = None
            if key is not None:
                session = sessions.ensure(connection, key, self._now(), listed=False).id
            sessions.choose(connection, session, model)

        await self._database.write("A9.choose", write)

    async def note_sweep(self) -> None:
        """Old rows are looked for now."""
        await self._database.write(
            "A8.sweep", lambda connection: retention.sweep(connection, self._now())
        )

    async def sweep_transcripts(self, before: int, breathe: Breathe) -> None:
        """Delete the messages of turns that ended before `before`, and what stands in no transcript
        any more, in small transactions with a breath between them."""
        session = await self._database.read(partial(retention.next_session, after=0))
        while session is not None:
            sweep = partial(retention.transcripts, session=session, before=before)
            while await self._swept(sweep):
                await breathe()
            session = await self._database.read(partial(retention.next_session, after=session))
            await breathe()
        while await self._swept(partial(retention.calls, before=before)):
            await breathe()
        await self._in_steps(partial(retention.rows, before=before, now=self._now()), breathe)

    async def sweep_texts(self, before: int, breathe: Breathe) -> None:
        """Delete the texts that were delivered before `before`; the same way."""
        await self._in_steps(partial(retention.texts, before=before, read=False), breathe)
        await self._in_steps(partial(retention.texts, before=before, read=True), breathe)

    async def _in_steps(self, run: Callable[..., int | None], breathe: Breathe) -> None:
        """Run a sweep that goes on behind the last row that it looked at."""
        after: int | None = 0
        while after is not None:
            after = await self._swept(partial(run, after=after))
            await breathe()

    async def _swept(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return await self._database.write("A8.sweep", run)

    async def shrink(self, breathe: Breathe) -> int:
        """Give free pages back to the disk, a few at a time; how many. The daemon goes on."""
        freed = 0
        while step := await self._database.upkeep("giving room back", _shrink):
            freed += step
            await breathe()
        await self._database.upkeep("emptying the log", _empty_log)
        return freed

    # -- alerts -------------------------------------------------------------------------

    async def open_alerts(self) -> Sequence[Alert]:
        """What the owner should know and whose cause has not gone, the oldest first."""
        return await self._database.read(alerts.open_alerts)

    async def dead_letters(self) -> Mapping[str, int]:
        """How many texts were given up, by channel."""
        return await self._database.read(outbox.dead_by_channel)

    async def raise_alert(
        self, alert: Alert, channels: Collection[str]
    ) -> tuple[Alert, Sequence[OutboundMessage]]:
        """Keep an alert and tell it, once, where the newest message on one of `channels` came
        from. As it is kept, and what was said."""
        return await self._database.write(
            "A6.raise_alert",
            lambda connection: alerts.raise_alert(
                connection, alert, channels=channels, pull=self._pull, now=self._now()
            ),
        )

    async def clear_alert(self, kind: AlertKind, subject: str) -> None:
        """The cause of an alert has gone."""
        await self._database.write(
            "A7.clear_alert",
            lambda connection: alerts.clear(connection, kind, subject, self._now()),
        )

    async def rescue(self) -> Path:
        """Write all that the writer still sees, its file being gone, to a file of its own. Raises
        `StoreError`; where that file is already, it is left as it is."""
        path = self._database.path.with_name(RESCUED)

        def save(connection: sqlite3.Connection) -> None:
            connection.execute("VACUUM INTO ?", (str(path),))
            path.chmod(0o600)

        await self._database.upkeep("saving what the lost file held", save)
        await anyio.to_thread.run_sync(snapshot.verify, path)
        return path

    async def _remove(
        self, name: str, run: Callable[[sqlite3.Connection], Removed], *, only_count: bool
    ) -> Removed:
        removed = await self._database.write(name, run)
        if not only_count:
            for key in removed.keys:
                self._recent.forget(key)
            if not await self._database.upkeep("emptying the log", _empty_log):
                log.warning("log_not_emptied", reason="another process reads the database")
        return removed


def _shrink(connection: sqlite3.Connection) -> int:
    """Free some pages, if there are more than need be; how many."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    if free <= _FREE_KEPT or mode != _INCREMENTAL:
        return 0
    connection.execute(f"PRAGMA incremental_vacuum({_FREED_AT_ONCE})").fetchall()
    (left,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(free - left)


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Bring what was overwritten into the file, and cut the log to nothing. False if a reader
    keeps it for now."""
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
