"""Dispatcher: from the outbox to the channels, and to whoever waits for replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio
import structlog
from anyio.abc import TaskGroup

from teaagentd.abc import Channel, Clock, Inbox
from teaagentd.channels.delivery import DeliveryLimits
from teaagentd.channels.served import ServedChannel
from teaagentd.channels.strangers import Strangers
from teaagentd.channels.supervisor import ChannelStatus, RestartLimits
from teaagentd.core.activity import ActivityFeed
from teaagentd.store import Store
from teaagentd.store.store import PULL_CHANNELS
from teaagentd.types import OutboundMessage, Reply, SessionKey

log = structlog.get_logger()


class Dispatcher:
    """Delivers committed texts. Replies on pull channels are read by their clients, for whom
    `replies` waits; those on push channels are sent as long as `run` runs."""

    def __init__(
        self,
        *,
        store: Store,
        channels: Mapping[str, Channel],
        inbox: Inbox,
        clock: Clock,
        feed: ActivityFeed,
        pull_channels: frozenset[str] = PULL_CHANNELS,
        limits: DeliveryLimits | None = None,
        restarts: RestartLimits | None = None,
        receivers: TaskGroup | None = None,
    ) -> None:
        """`receivers`, where channels receive, has an owner who need not wait for all to end."""
        self._store = store
        self._inbox = inbox
        self._clock = clock
        self._feed = feed
        self._pull_channels = pull_channels
        self._limits = limits or DeliveryLimits()
        self._restarts = restarts or RestartLimits()
        self._receivers = receivers
        self._changed = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._draining = False
        self._readers: dict[SessionKey, set[anyio.Event]] = {}
        self._strangers = Strangers(store)
        self._leaving: list[ServedChannel] = []
        self._served = {name: self._serve(channel) for name, channel in channels.items()}

    def _serve(self, channel: Channel) -> ServedChannel:
        return ServedChannel(
            channel,
            store=self._store,
            inbox=self._inbox,
            clock=self._clock,
            limits=self._limits,
            restarts=self._restarts,
            on_change=self._note_change,
        )

    # -- the channels that are configured -----------------------------------------------

    def use(self, channels: Mapping[str, Channel]) -> None:
        """Serve `channels` from now on. One that is the same object goes on; the others end, and
        what takes their place begins then. Raises `ConfigError`; then nothing has changed."""
        served = {
            name: before
            if (before := self._served.get(name)) is not None and before.channel is channel
            else self._serve(channel)
            for name, channel in channels.items()
        }
        known = set(self._served.values())
        leaving = known.difference(served.values())
        self._served = served
        if self._tasks is not None:
            self._leaving = [one for one in self._leaving if not one.gone] + list(leaving)
            for one in leaving:
                self._tasks.start_soon(self._end, one)
            for one in set(served.values()) - known:
                self._tasks.start_soon(self._run, one, tuple(self._leaving))

    async def _end(self, one: ServedChannel) -> None:
        await one.stop()
        self.kick(one.channel.name)

    async def _run(self, one: ServedChannel, before: Sequence[ServedChannel] = ()) -> None:
        """Run `one` when those `before` it that had its name have ended."""
        for other in before:
            if other.channel.name == one.channel.name:
                await other.stop()
        assert self._tasks is not None
        await one.run(self._receivers or self._tasks)

    def serves(self, channel: str) -> bool:
        """Whether it is a push channel that is configured."""
        return channel in self._served

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Channels that have not ended though they should have."""
        everyone = (*self._leaving, *self._served.values())
        return tuple(sorted(one.channel.name for one in everyone if one.begun and not one.gone))

    # -- after a commit -----------------------------------------------------------------

    def announce(self, outbound: Sequence[OutboundMessage]) -> None:
        """Tell everyone of texts that were just committed: the feed, those who wait in
        `replies`, the push channels. Never blocks, never raises."""
        for message in outbound:
            self._feed.publish(Reply(message=message))
            for reader in self._readers.get(message.session_key, ()):
                reader.set()
            self.kick(message.address.channel)

    def kick(self, channel: str) -> None:
        """The outbox of `channel` may hold something to send."""
        if channel in self._served:
            self._served[channel].kick()
        elif channel in self._pull_channels:
            return
        elif not any(one.channel.name == channel and one.delivering for one in self._leaving):
            self._strangers.kick(channel)

    # -- for those who read -------------------------------------------------------------

    async def replies(
        self, key: SessionKey, *, after: int, limit: int = 100, wait_s: float = 0.0
    ) -> tuple[OutboundMessage, ...]:
        """The session's texts with ids greater than `after`, oldest first; if there are none
        yet, it waits up to `wait_s` seconds for the first."""
        deadline = anyio.current_time() + wait_s
        while True:
            with self._reader(key) as committed:
                found = await self._store.replies(key, after=after, limit=limit)
                if found or self._draining or anyio.current_time() >= deadline:
                    return found
                with anyio.CancelScope(deadline=deadline):
                    await committed.wait()

    @contextmanager
    def _reader(self, key: SessionKey) -> Iterator[anyio.Event]:
        """An event that the next commit for `key` sets; in place before the outbox is read, so
        that no commit falls between."""
        committed = anyio.Event()
        readers = self._readers.setdefault(key, set())
        readers.add(committed)
        try:
            yield committed
        finally:
            readers.discard(committed)
            if not readers:
                self._readers.pop(key, None)

    # -- push channels ------------------------------------------------------------------

    async def run(self) -> None:
        """Run every push channel and deliver to it, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for one in self._served.values():
                    tasks.start_soon(self._run, one)
                tasks.start_soon(self._strangers.run, self.kick)
        finally:
            self._tasks = None
            self._note_change()

    async def drain(self, limit_s: float) -> tuple[str, ...]:
        """Wait until what is in the outbox is sent, as far as the channels take it now, for up
        to `limit_s` seconds. Returns what was still waited for; it goes on at the next start.
        Readers in `replies` get what there is and wait no longer."""
        self._draining = True
        for readers in self._readers.values():
            for reader in readers:
                reader.set()
        with anyio.move_on_after(limit_s):
            while self.waiting_for():
                self._changed = anyio.Event()
                await self._changed.wait()
        return self.waiting_for()

    def waiting_for(self) -> tuple[str, ...]:
        """What a drain waits for, in words. Channels that must wait themselves are not in it."""
        if self._tasks is None:
            return ()
        return tuple(
            f"replies to {one.unsettled} chat(s) of {name}"
            for name, one in self._served.items()
            if one.unsettled
        )

    def channel_status(self) -> tuple[ChannelStatus, ...]:
        """Every push channel, those that failed included."""
        return tuple(one.status for one in self._served.values())

    def _note_change(self) -> None:
        self._changed.set()
