"""The threads that read: started when there is something to read and none is free."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from teaagentd.errors import StoreUnavailable
from teaagentd.store.faults import explain
from teaagentd.store.opening import open_reader

T = TypeVar("T")
V = TypeVar("V")
Job = Callable[["Reader"], None]
_MOST = 2


class Reader:
    """One thread's connection, opened at its first job and again after a failure to open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = open_reader(self.path)
            return read(self._connection)
        except sqlite3.Error as error:
            raise explain(error, self.path, "reading the store") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Readers:
    """At most two reading threads. Used from the event loop that made it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[asyncio.Future[None]] = []
        self._unanswered = 0
        self._closed = False

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What `read` finds. Raises `StoreUnavailable` or `StoreDamaged`."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()

        def job(reader: Reader) -> None:
            try:
                result = reader.run(read)
            except Exception as error:
                self._tell(_fail, future, error)
            else:
                self._tell(_succeed, future, result)

        self._unanswered += 1
        if self._unanswered > len(self._threads) < _MOST:
            self._start()
        self._queue.put(job)
        try:
            return await future
        finally:
            self._unanswered -= 1

    async def close(self) -> None:
        """Answer what is asked, then close the connections. Idempotent."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for ended in self._threads:
            await asyncio.shield(ended)

    def _start(self) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        self._threads.append(ended)
        threading.Thread(target=self._live, args=(ended,), name="store-reader", daemon=True).start()

    def _live(self, ended: asyncio.Future[None]) -> None:
        reader = Reader(self._path)
        while (job := self._queue.get()) is not None:
            job(reader)
        reader.close()
        self._tell(_succeed, ended, None)

    def _tell(
        self, call: Callable[[asyncio.Future[T], V], None], future: asyncio.Future[T], value: V
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(call, future, value)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
