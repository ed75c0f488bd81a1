"""The one thread that writes: it takes all operations that wait and commits them together.

Each operation runs in a savepoint of its own, so one that fails leaves the others alone. What
undoes the whole transaction (a full disk, an I/O error) makes each run again by itself. Callers
are answered after the commit. The thread sleeps on its queue; nothing polls.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import structlog

from teaagentd.errors import StoreError, StoreUnavailable
from teaagentd.store.commits import COMMITS
from teaagentd.store.faults import explain, primary_code, spoils_transaction
from teaagentd.store.opening import open_writer

log = structlog.get_logger()

T = TypeVar("T")
OnCommit = Callable[[str, str], None]
"""Told `(name, "before" | "after")` in the writer's thread around each commit of an operation
that changed something. What it raises ends the writer."""

_BATCH = 512
_NAMES = frozenset(COMMITS)


class Operation(Generic[T]):
    """One unit of work on its way through the writer, and what it came to."""

    __slots__ = ("alone", "changed", "error", "name", "result", "run", "settled", "waiter")

    def __init__(
        self, name: str, run: Callable[[sqlite3.Connection], T], waiter: asyncio.Future[None]
    ) -> None:
        self.name = name
        self.run = run
        self.waiter = waiter
        self.alone = False
        self.settled = False
        self.changed = False
        self.result: T
        self.error: BaseException | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result

    def reset(self) -> None:
        self.error = None
        self.changed = False


class Writer:
    """Owns the writing connection. `submit` is called on the event loop that made it."""

    def __init__(self, path: Path, on_commit: OnCommit | None) -> None:
        self.path = path
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Operation[object] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._ended: StoreError | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._live, name="store-writer", daemon=True)

    async def start(self) -> None:
        """Open the database in the thread. Raises what opening it raises."""
        self._thread.start()
        try:
            await self._opened
        except asyncio.CancelledError:
            self._end()
            raise

    def submit(self, operation: Operation[T]) -> None:
        """Queue `operation`; its waiter is woken after the commit. Raises `StoreUnavailable`
        once the writer has ended, `ValueError` for a name that is no commit point."""
        if operation.name not in _NAMES:
            raise ValueError(f"{operation.name} is not a registered commit point")
        self._queue_up(operation)

    def ping(self, waiter: asyncio.Future[None]) -> None:
        """Wake `waiter` once the thread has come to it. Raises `StoreUnavailable` once the
        writer has ended; a disk that fails does not count as that."""
        self._queue_up(Operation("ping", lambda connection: None, waiter))

    def aside(self, operation: Operation[T]) -> None:
        """Queue what runs between transactions, not in one: upkeep of the file. As `submit`."""
        operation.alone = True
        self._queue_up(operation)

    def _queue_up(self, operation: Operation[T]) -> None:
        with self._gate:
            if self._ended is not None:
                raise self._ended
            self._queue.put(operation)  # type: ignore[arg-type]  # results are only passed on

    async def close(self) -> None:
        """Do what is queued, then close the connection and end the thread. Idempotent."""
        self._end()
        if self._thread.ident is not None:
            await asyncio.shield(self._closed)

    def _end(self) -> None:
        with self._gate:
            if self._ended is None:
                self._ended = StoreUnavailable("the store is closed; nothing was kept")
                self._queue.put(None)

    # -- in the thread ------------------------------------------------------------------

    def _live(self) -> None:
        try:
            connection = open_writer(self.path)
        except BaseException as error:
            self._tell(self._fail_opening, error)
            return
        self._tell(_resolve, self._opened)
        batch: list[Operation[object]] = []
        try:
            while self._take(batch):
                self._commit(connection, batch)
                self._tell(_answer, batch)
                batch = []
        except BaseException as error:
            log.critical("store_writer_died", error=repr(error))
            self._die(error, batch)
        finally:
            try:
                connection.close()
            except sqlite3.Error as error:
                log.error("store_not_closed", error=str(error))
            self._tell(_resolve, self._closed)

    def _take(self, batch: list[Operation[object]]) -> bool:
        """Wait for work and take all there is, up to a bound. False at the end."""
        operation = self._queue.get()
        while operation is not None:
            batch.append(operation)
            if len(batch) == _BATCH:
                return True
            try:
                operation = self._queue.get_nowait()
            except Empty:
                return True
        if batch:
            self._queue.put(None)
        return bool(batch)

    def _commit(self, connection: sqlite3.Connection, batch: Sequence[Operation[object]]) -> None:
        for operation in batch:
            if operation.alone:
                self._upkeep(connection, operation)
        batch = [operation for operation in batch if not operation.alone]
        if len(batch) > 1:
            try:
                self._together(connection, batch)
                return
            except sqlite3.Error as error:
                log.warning("store_batch_undone", operations=len(batch), error=str(error))
                _undo(connection)
                if primary_code(error) == sqlite3.SQLITE_BUSY:
                    # The wait for the lock was had: each would have it again.
                    for operation in batch:
                        operation.error = explain(error, self.path, operation.name)
                    return
        for operation in batch:
            operation.reset()
            try:
                self._together(connection, (operation,))
            except sqlite3.Error as error:
                _undo(connection)
                operation.error = explain(error, self.path, operation.name)
                log.error("store_commit_failed", commit=operation.name, error=str(error))

    def _upkeep(self, connection: sqlite3.Connection, operation: Operation[object]) -> None:
        try:
            operation.result = operation.run(connection)
        except sqlite3.Error as error:
            _undo(connection)
            operation.error = explain(error, self.path, operation.name)

    def _together(self, connection: sqlite3.Connection, batch: Sequence[Operation[object]]) -> None:
        """All of `batch` in one transaction. Raises `sqlite3.Error` when it is undone whole."""
        execute, alone = connection.execute, len(batch) == 1
        execute("BEGIN IMMEDIATE")
        for operation in batch:
            if not alone:
                execute("SAVEPOINT operation")
            before = connection.total_changes
            try:
                operation.result = operation.run(connection)
            except Exception as error:
                if spoils_transaction(error) or not connection.in_transaction:
                    raise
                execute("ROLLBACK" if alone else "ROLLBACK TO operation")
                operation.error = self._worded(operation, error)
                if alone:
                    return
            else:
                operation.changed = connection.total_changes != before
            if not alone:
                execute("RELEASE operation")
        hook = self._on_commit
        changed = [operation.name for operation in batch if operation.changed] if hook else ()
        for name in changed:
            hook(name, "before")  # type: ignore[misc]  # no names without a hook
        execute("COMMIT")
        for name in changed:
            hook(name, "after")  # type: ignore[misc]

    def _worded(self, operation: Operation[object], error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            log.error("store_commit_failed", commit=operation.name, error=str(error))
            return explain(error, self.path, operation.name)
        return error

    def _die(self, error: BaseException, batch: list[Operation[object]]) -> None:
        """Nothing is written any more; everyone who waits is told."""
        ended = StoreUnavailable(
            f"the store's writer has ended ({error!r}); nothing more is kept. Restart the daemon"
        )
        with self._gate:
            self._ended = ended
            while True:
                try:
                    operation = self._queue.get_nowait()
                except Empty:
                    break
                if operation is not None:
                    batch.append(operation)
        for operation in batch:
            operation.error = ended
        self._tell(_answer, batch)

    def _fail_opening(self, error: BaseException) -> None:
        self._ended = StoreUnavailable("the store could not be opened")
        if not self._opened.done():
            self._opened.set_exception(error)
        _resolve(self._closed)

    def _tell(self, call: Callable[[T], None], value: T) -> None:
        try:
            self._loop.call_soon_threadsafe(call, value)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _answer(batch: Sequence[Operation[object]]) -> None:
    for operation in batch:
        operation.settled = True
        if not operation.waiter.done():
            operation.waiter.set_result(None)


def _undo(connection: sqlite3.Connection) -> None:
    """Leave the transaction. Raises only if that is not possible, which ends the writer."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        if connection.in_transaction:
            raise
