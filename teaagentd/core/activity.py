"""Activity and its feed: what the turns are busy with, for whoever watches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias
from uuid import uuid4

import structlog

from teaagentd.abc import Clock
from teaagentd.event_buffer import EventBuffer, Subscription
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
_RECENT = 4096
"""Events kept for subscribers who come back."""
_KEEP_DELTAS_S = 300.0
"""How long after the last subscriber has left deltas are kept for his return."""

log = structlog.get_logger()


OnActivity: TypeAlias = Callable[[Activity], None]


class ActivityFeed:
    """Where turns publish. Never blocks, never raises; without a watcher or a subscriber a
    delta costs one comparison. All methods belong to the event loop's thread."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._watcher: OnActivity | None = None
        self._subscriptions: list[Subscription] = []
        self._live: dict[str, LiveTurn] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.recent = EventBuffer(_RECENT)
        self._keep_deltas_until = 0.0
        self.name = uuid4().hex[:12]
        """Of this feed, which lives as long as its process: its numbers mean nothing elsewhere."""
        self.number = 0
        """That of the newest event."""
        self.newest_reply = 0
        """The highest id of a text that was shown, or was there before."""

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
        elif isinstance(event, Reply):
            self.newest_reply = max(self.newest_reply, event.message.id)
        elif event.turn_id in self._ended:
            return
        self.number += 1
        self.recent.add(self.number, event)
        for subscription in self._subscriptions:
            subscription.offer(self.number, event)

    def since(
        self, number: int, session_key: SessionKey | None
    ) -> Sequence[tuple[int, FeedEvent]] | None:
        """What was published after the event with this number, of one session or of all, with its
        numbers; None where some of it is gone."""
        return self.recent.since(number, session_key) if number <= self.number else None

    @property
    def listened(self) -> bool:
        """Whether anyone sees what streams, or may come back to see it."""
        return bool(self._subscriptions) or self._clock.monotonic() < self._keep_deltas_until

    def joined(self, subscription: Subscription) -> None:
        """It gets what is published from now on."""
        self._subscriptions.append(subscription)

    def left(self, subscription: Subscription) -> None:
        """It gets no more."""
        self._subscriptions.remove(subscription)
        self._keep_deltas_until = self._clock.monotonic() + _KEEP_DELTAS_S

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
        if self._feed.listened:
            self._feed.publish(Delta(session_key=self._key, turn_id=self._turn_id, text=text))

    def reset(self) -> None:
        if self._feed.listened:
            self._feed.publish(Reset(session_key=self._key, turn_id=self._turn_id))
