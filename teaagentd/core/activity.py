"""Activity and its feed: what the turns are busy with, for whoever watches."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

import anyio
import structlog

from teaagentd.abc import Clock
from teaagentd.types import (
    Activity,
    Delta,
    FeedEvent,
    LiveTurn,
    Phase,
    Reply,
    Reset,
    SessionKey,
)

_ENDED_KEPT = 1024
_HELD_MAX = 4_000_000
"""Characters that one subscriber's buffer holds, the newest event excepted."""

log = structlog.get_logger()


OnActivity: TypeAlias = Callable[[Activity], None]


class Subscription:
    """One subscriber's events, in order. At its limit, of events or of text, the oldest is dropped
    and counted, so
    what a slow subscriber keeps is always the newest. One task may iterate it at a time."""

    def __init__(self, feed: ActivityFeed, session_key: SessionKey | None, limit: int) -> None:
        self._feed = feed
        self._key = session_key
        self._events: deque[FeedEvent] = deque()
        self._limit = limit
        self._held = 0
        self._arrived: anyio.Event | None = None
        self.dropped = 0

    async def __aenter__(self) -> Subscription:
        self._feed._subscriptions.append(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._feed._subscriptions.remove(self)
        self._events.clear()
        self._held = 0

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> FeedEvent:
        """The next event; waits without a limit, for there may be none for days."""
        while not self._events:
            if self not in self._feed._subscriptions:
                raise RuntimeError("a subscription is read inside its `async with`")
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._take()

    def _take(self) -> FeedEvent:
        event = self._events.popleft()
        self._held -= _size(event)
        return event

    def _offer(self, event: FeedEvent) -> None:
        if self._key is not None and event.session_key != self._key:
            return
        self._events.append(event)
        self._held += _size(event)
        while len(self._events) > self._limit or (self._held > _HELD_MAX and len(self._events) > 1):
            self._take()
            self.dropped += 1
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


class ActivityFeed:
    """Where turns publish. Never blocks, never raises; without a watcher or a subscriber a
    delta costs one comparison. All methods belong to the event loop's thread."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._watcher: OnActivity | None = None
        self._subscriptions: list[Subscription] = []
        self._live: dict[str, LiveTurn] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def on_activity(self, fn: OnActivity | None) -> None:
        """Install the one watcher in place of any other; None removes it. It gets phase
        changes only, must not block nor call back into the loop; what it raises is logged."""
        self._watcher = fn

    def subscribe(self, session_key: SessionKey | None = None, limit: int = 256) -> Subscription:
        """An async context manager and iterator over the events of one session, or of all;
        it buffers at most `limit` of them."""
        return Subscription(self, session_key, limit)

    def live(self) -> tuple[LiveTurn, ...]:
        """Every turn that has shown a phase and is not done, oldest first."""
        return tuple(self._live.values())

    def phase_of(self, turn_id: str) -> LiveTurn | None:
        """What a turn is busy with; None before its first phase and after its `done`."""
        return self._live.get(turn_id)

    def watcher(self, session_key: SessionKey, turn_id: str) -> TurnWatcher:
        """The `Watcher` of one turn."""
        return TurnWatcher(self, session_key, turn_id)

    def publish(self, event: FeedEvent) -> None:
        """Show `event` to everyone. After a turn's `done` nothing more of it is shown, so it
        has exactly one."""
        if isinstance(event, Activity):
            if not self._advance(event):
                return
            self._tell_watcher(event)
        elif isinstance(event, (Delta, Reset)) and event.turn_id in self._ended:
            return
        for subscription in self._subscriptions:
            subscription._offer(event)

    def _advance(self, event: Activity) -> bool:
        if event.turn_id in self._ended:
            return False
        if event.phase is Phase.DONE:
            self._live.pop(event.turn_id, None)
            self._ended[event.turn_id] = None
            if len(self._ended) > _ENDED_KEPT:
                self._ended.popitem(last=False)
            return True
        now = self._clock.now_ms()
        before = self._live.get(event.turn_id)
        self._live[event.turn_id] = LiveTurn(
            session_key=event.session_key,
            turn_id=event.turn_id,
            phase=event.phase,
            detail=event.detail,
            since=now,
            started=before.started if before else now,
        )
        return True

    def _tell_watcher(self, event: Activity) -> None:
        if self._watcher is None:
            return
        try:
            self._watcher(event)
        except Exception:
            log.exception("activity_watcher_failed", phase=event.phase, turn_id=event.turn_id)


class TurnWatcher:
    """The `Watcher` of one turn: puts its phases and deltas on the feed."""

    def __init__(self, feed: ActivityFeed, session_key: SessionKey, turn_id: str) -> None:
        self._feed = feed
        self._key = session_key
        self._turn_id = turn_id

    def phase(self, phase: str, detail: str = "") -> None:
        self._feed.publish(
            Activity(
                session_key=self._key, phase=Phase(phase), detail=detail, turn_id=self._turn_id
            )
        )

    def delta(self, text: str) -> None:
        if self._feed._subscriptions:
            self._feed.publish(Delta(session_key=self._key, turn_id=self._turn_id, text=text))

    def reset(self) -> None:
        if self._feed._subscriptions:
            self._feed.publish(Reset(session_key=self._key, turn_id=self._turn_id))
