"""The database as the event loop sees it: writes that are never revoked, reads beside them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeVar

import anyio

from teaagentd.errors import StoreDamaged
from teaagentd.store.readers import Readers
from teaagentd.store.writer import OnCommit, Operation, Writer

T = TypeVar("T")


class Database:
    """One writing connection in a thread of its own, and up to two reading ones."""

    damage: StoreDamaged | None = None
    """What was met first of a file that something else has written over."""
    on_damage: Callable[[], None] | None = None
    """Called then, in the event loop."""

    def __init__(self, path: Path, on_commit: OnCommit | None = None) -> None:
        self.path = path
        self._writer = Writer(path, on_commit)
        self._readers = Readers(path)
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Raises `StoreDamaged`, `StoreTooNew` or `StoreUnavailable`."""
        await self._writer.start()

    async def write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run` in a transaction of the writer's; what it returns, after the commit.

        A caller that is cancelled still learns the outcome; its cancellation is delivered at
        its next wait. Raises what `run` raises, `StoreUnavailable` or `StoreDamaged`; then
        nothing of it was kept.
        """
        operation = Operation(name, run, self._loop.create_future())
        self._writer.submit(operation)
        return await self._settled(operation)

    async def upkeep(self, what: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run` on the writer's connection between transactions. `what` names it in errors;
        otherwise as `write`."""
        operation = Operation(what, run, self._loop.create_future())
        self._writer.aside(operation)
        return await self._settled(operation)

    async def _settled(self, operation: Operation[T]) -> T:
        try:
            await operation.waiter
        except asyncio.CancelledError:
            await self._outlast(operation)
        try:
            return operation.outcome()
        except StoreDamaged as error:
            self._met(error)
            raise

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """What `run` finds on a reading connection. Raises `StoreUnavailable`, `StoreDamaged`."""
        try:
            return await self._readers.read(run)
        except StoreDamaged as error:
            self._met(error)
            raise

    def _met(self, error: StoreDamaged) -> None:
        if self.damage is None:
            self.damage = error
            if self.on_damage is not None:
                self.on_damage()

    async def ping(self) -> None:
        """Return once the writer has done what was queued before. Can be cancelled."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._writer.ping(waiter)
        await waiter

    async def close(self) -> None:
        """Finish what is queued and close every connection, the writer's last."""
        with anyio.CancelScope(shield=True):
            await self._readers.close()
            await self._writer.close()

    async def _outlast(self, operation: Operation[T]) -> None:
        """Wait for the outcome in spite of a cancellation, and leave that for the next wait."""
        asked_natively = 0 if anyio.current_effective_deadline() == -inf else 1
        with anyio.CancelScope(shield=True):
            while not operation.settled:
                operation.waiter = self._loop.create_future()
                try:
                    await operation.waiter
                except asyncio.CancelledError:
                    asked_natively += 1
        task = asyncio.current_task()
        if asked_natively and task is not None:
            # Not from a cancel scope, which would repeat itself: ask again, once.
            task.uncancel()
            task.cancel()
