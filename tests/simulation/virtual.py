"""Virtual time in one thread: an event loop whose clock jumps to the next timer, and a store whose
writer and readers run in it."""

from __future__ import annotations

import asyncio
import heapq
import selectors
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from teaagentd.errors import StoreUnavailable
from teaagentd.store.database import Database
from teaagentd.store.opening import open_reader, open_writer
from teaagentd.store.writer import OnCommit, Operation, Writer

T = TypeVar("T")
Delay = Callable[[], float]
"""How long the next hop takes, in virtual seconds."""

_ROUNDS_AT_ONE_TIME, _MOST_ROUNDS = 300, 100_000


class Stuck(AssertionError):
    """Everything waits, and for nothing that could come."""


class _NoSelector(selectors.BaseSelector):
    """Nothing comes from outside."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, and else jumps to the next timer. What only asks
    again and again, as the delivery of a cancellation does, does not hold it up. `after_round` is
    called after each round."""

    def __init__(self, start: float) -> None:
        self._now = start
        self._rounds = 0
        super().__init__(_NoSelector())
        self.after_round: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        self._rounds += 1
        if not self._ready or self._rounds > _ROUNDS_AT_ONE_TIME:  # type: ignore[attr-defined]
            self._jump()
        super()._run_once()  # type: ignore[misc]
        self.after_round()

    def _jump(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]  # of the base class
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined, has-type]
            heapq.heappop(timers)._scheduled = False
        if timers:
            if self._now < timers[0]._when:
                self._rounds = 0
            self._now = max(self._now, timers[0]._when)
        elif not self._ready or self._rounds > _MOST_ROUNDS:  # type: ignore[attr-defined]
            raise Stuck("everything waits for ever")


class InlineWriter(Writer):
    """The writer, its commits made by the loop: what waits is taken together, as the thread does.
    `broken` set makes every commit fail as a full disk does."""

    def __init__(self, path: Path, on_commit: OnCommit | None, delay: Delay) -> None:
        super().__init__(path, on_commit)
        self._delay = delay
        self._waiting: list[Operation[Any]] = []
        self._armed = False
        self.connection = open_writer(path)
        self.broken = False

    async def start(self) -> None:
        """It is open already."""

    def _queue_up(self, operation: Operation[Any]) -> None:
        if self._ended is not None:
            raise self._ended
        self._waiting.append(operation)
        if not self._armed:
            self._armed = True
            self._loop.call_later(self._delay(), self._pump)

    def _pump(self) -> None:
        self._armed = False
        batch, self._waiting = self._waiting, []
        if self.broken:
            for operation in batch:
                if operation.name != "ping":
                    operation.error = StoreUnavailable("the disk is full")
        else:
            self._commit(self.connection, batch)
        self._loop.call_later(self._delay(), _answer, batch)

    async def close(self) -> None:
        self._ended = StoreUnavailable("the store is closed")
        self.connection.close()

    def drop(self) -> None:
        """As a kill does: what is not committed is gone."""
        self._ended = StoreUnavailable("the process is dead")
        self._waiting.clear()
        self.connection.close()


def _answer(batch: list[Operation[Any]]) -> None:
    for operation in batch:
        operation.settled = True
        if not operation.waiter.done():
            operation.waiter.set_result(None)


class InlineDatabase(Database):
    """The database without a thread."""

    def __init__(self, path: Path, on_commit: OnCommit | None, delay: Delay) -> None:
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self.inline = InlineWriter(path, on_commit, delay)
        self._writer = self.inline
        self.reader = open_reader(path)

    async def open(self) -> None:
        """It is open already."""

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        await asyncio.sleep(self._delay())
        return run(self.reader)

    async def close(self) -> None:
        await self.inline.close()
        self.reader.close()

    def drop(self) -> None:
        """As a kill does."""
        self.inline.drop()
        self.reader.close()
