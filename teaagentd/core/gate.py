"""The gate: how many turns work at a time, and in what order the others wait."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from teaagentd.errors import TooManyParked


class _Waiter:
    """One place in the queue; `admitted` is set by whoever hands the slot over."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.admitted = False


class Gate:
    """At most `limit` slots are held at once; who waits is served first come, first served,
    turns that come back from a wait before those that have not begun."""

    def __init__(self, limit: int, *, max_parked: int = 100) -> None:
        if limit < 1:
            raise ValueError(f"the gate needs at least one slot, not {limit}")
        self.limit = limit
        self.max_parked = max_parked
        self.held = 0
        self.parked = 0
        self._new: deque[_Waiter] = deque()
        self._returning: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many turns wait for a slot."""
        return len(self._new) + len(self._returning)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and nobody waits for it."""
        if self.held < self.limit and not self._new and not self._returning:
            self.held += 1
            return True
        return False

    async def acquire(self, *, returning: bool = False) -> None:
        """Wait for a slot without limit: its turn always comes, as every holder has a deadline."""
        if self.try_acquire():
            return
        queue = self._returning if returning else self._new
        waiter = _Waiter()
        queue.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.admitted:
                self.release()
            else:
                queue.remove(waiter)
            raise

    def release(self) -> None:
        """Give a slot back; the first in the queue holds it from this moment."""
        self.held -= 1
        self._admit()

    def resize(self, limit: int) -> None:
        """Change the cap. Running turns keep their slots; a smaller cap works as they end."""
        self.limit = limit
        self._admit()

    def _admit(self) -> None:
        while self.held < self.limit and (self._returning or self._new):
            waiter = (self._returning or self._new).popleft()
            waiter.admitted = True
            self.held += 1
            waiter.event.set()


class Slot:
    """One turn's hold on the gate, given back while every open call of the turn waits.

    `on_pause` and `on_resume` are called as the slot is given back and taken again: the turn's
    deadline stands still in between. They must not raise or block.
    """

    def __init__(
        self, gate: Gate, *, on_pause: Callable[[], None], on_resume: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._on_pause = on_pause
        self._on_resume = on_resume
        self._held = False
        self._parked = False
        self._open_calls = 0
        self._waits = 0
        self._coming_back = anyio.Lock()

    @property
    def held(self) -> bool:
        return self._held

    def try_acquire(self) -> bool:
        self._held = self._held or self._gate.try_acquire()
        return self._held

    async def acquire(self) -> None:
        if not self._held:
            await self._gate.acquire()
            self._held = True

    def release(self) -> None:
        """Idempotent; also ends a parking."""
        self._unpark()
        if self._held:
            self._held = False
            self._gate.release()

    def call_opened(self) -> None:
        self._open_calls += 1

    def call_closed(self) -> None:
        self._open_calls -= 1
        self._park_if_all_wait()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Around what one call waits for. Raises `TooManyParked` before anything is waited for."""
        if self._would_park(self._waits + 1) and self._gate.parked >= self._gate.max_parked:
            raise TooManyParked(self._gate.max_parked)
        self._waits += 1
        self._park_if_all_wait()
        try:
            yield
        except anyio.get_cancelled_exc_class():
            # Whoever goes on in spite of it settles; whoever does not needs no slot.
            self._waits -= 1
            raise
        except BaseException:
            self._waits -= 1
            await self._come_back()
            raise
        self._waits -= 1
        await self._come_back()

    async def settle(self) -> None:
        """After a call was opened or closed: hold a slot again, unless every open call waits."""
        if self._parked and not (self._waits and self._waits >= max(self._open_calls, 1)):
            await self._come_back()

    def _would_park(self, waits: int) -> bool:
        return self._held and waits >= max(self._open_calls, 1)

    def _park_if_all_wait(self) -> None:
        if self._waits and self._would_park(self._waits):
            self._held = False
            self._parked = True
            self._gate.parked += 1
            self._on_pause()
            self._gate.release()

    async def _come_back(self) -> None:
        async with self._coming_back:
            if self._parked:
                await self._gate.acquire(returning=True)
                self._held = True
                self._unpark()

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self._gate.parked -= 1
            self._on_resume()
