"""Events on their way to whoever watches: buffers that are bounded, in number and in text, and the
subscriptions that read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Protocol

import anyio

from teaagentd.types import Activity, Delta, FeedEvent, Reply, SessionKey

HELD_MAX = 4_000_000
"""Characters that a buffer holds, the newest event excepted."""


class EventBuffer:
    """Events with their numbers, in order. At its limit the oldest is dropped and counted, so that
    what is kept is always the newest."""

    def __init__(self, limit: int) -> None:
        self._events: deque[tuple[int, FeedEvent]] = deque()
        self._limit = limit
        self._held = 0
        self._gone = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, number: int, event: FeedEvent) -> None:
        """Take in the newest event."""
        self._events.append((number, event))
        self._held += _size(event)
        while len(self._events) > self._limit or (self._held > HELD_MAX and len(self._events) > 1):
            self._gone, _ = self.take()
            self.dropped += 1

    def take(self) -> tuple[int, FeedEvent]:
        """Take out the oldest. Raises `IndexError` where there is none."""
        number, event = self._events.popleft()
        self._held -= _size(event)
        return number, event

    def clear(self) -> None:
        self._events.clear()
        self._held = 0

    def forget(self, keys: Collection[SessionKey]) -> None:
        """What these sessions' events said is erased: they are gone as if they had never been."""
        kept = [(one, event) for one, event in self._events if event.session_key not in keys]
        self._events = deque(kept)
        self._held = sum(_size(event) for _, event in kept)

    def since(self, number: int, key: SessionKey | None) -> Sequence[tuple[int, FeedEvent]] | None:
        """What came after the event with this number, of one session or of all; None where some of
        it is no longer held."""
        if number < self._gone:
            return None
        return [
            (one, event)
            for one, event in self._events
            if one > number and (key is None or event.session_key == key)
        ]


class Feed(Protocol):
    """What a subscription reads from."""

    number: int
    """That of the newest event."""

    def joined(self, subscription: Subscription) -> None: ...

    def left(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscriber's events, in order. At its limit the oldest is dropped and counted. One task
    may iterate it at a time."""

    def __init__(self, feed: Feed, session_key: SessionKey | None, limit: int) -> None:
        self._feed = feed
        self._key = session_key
        self._events = EventBuffer(limit)
        self._open = False
        self._arrived: anyio.Event | None = None
        self.number = feed.number
        """That of the event that was given last; at first, of the last one before it began."""

    @property
    def dropped(self) -> int:
        """How many events it has lost by being slow."""
        return self._events.dropped

    async def __aenter__(self) -> Subscription:
        self._feed.joined(self)
        self._open = True
        self.number = self._feed.number
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._feed.left(self)
        self._open = False
        self._events.clear()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> FeedEvent:
        """The next event; waits without a limit, for there may be none for days."""
        while not len(self._events):
            if not self._open:
                raise RuntimeError("a subscription is read inside its `async with`")
            self._arrived = anyio.Event()
            await self._arrived.wait()
        self.number, event = self._events.take()
        return event

    def offer(self, number: int, event: FeedEvent) -> None:
        """Take in an event, if it is of the session that is watched."""
        if self._key is not None and event.session_key != self._key:
            return
        self._events.add(number, event)
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None


def _size(event: FeedEvent) -> int:
    """Characters of text that it holds."""
    if isinstance(event, Reply):
        return len(event.message.content)
    if isinstance(event, Delta):
        return len(event.text)
    return len(event.detail) if isinstance(event, Activity) else 0
