"""ServedChannel: one push channel at work, from the time it is configured until it no longer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
import structlog
from anyio.abc import TaskGroup

from teaagentd.abc import Channel, Clock, Inbox
from teaagentd.channels.delivery import Delivery, DeliveryLimits
from teaagentd.channels.supervisor import ChannelStatus, ChannelSupervisor, RestartLimits
from teaagentd.errors import SenderRefused
from teaagentd.store import Store
from teaagentd.types import Attachment, InboundMessage

END_S = 10.0
"""How long its sends may take to end, and then its receiving."""

log = structlog.get_logger()


class _Door:
    """The inbox as a channel sees it: strangers cost nothing, learn nothing, and end nothing."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def publish(self, message: InboundMessage) -> object:
        """As the inbox does; None for a message that was refused for its sender."""
        try:
            return await self._inbox.publish(message)
        except SenderRefused:
            log.info("stranger_refused", channel=message.channel)
            return None

    async def keep(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        return await self._inbox.keep(data, name=name, media_type=media_type)


class ServedChannel:
    """Receives and delivers. It can be run once; a channel that is changed gets another one."""

    def __init__(
        self,
        channel: Channel,
        *,
        store: Store,
        inbox: Inbox,
        clock: Clock,
        limits: DeliveryLimits,
        restarts: RestartLimits,
        on_change: Callable[[], None],
    ) -> None:
        """Raises `ConfigError` for a channel that cannot carry anything."""
        self.channel = channel
        self._on_change = on_change
        self._changed = anyio.Event()
        self._delivery = Delivery(
            store=store, channel=channel, clock=clock, limits=limits, on_change=self._note_change
        )
        self._supervisor = ChannelSupervisor(
            channel=channel, inbox=_Door(inbox), clock=clock, limits=restarts
        )
        self._receiving = anyio.CancelScope()
        self._delivering = anyio.CancelScope()
        self._received = anyio.Event()
        self._ended = anyio.Event()
        self._over = False
        self.begun = False
        """Whether it was run."""

    @property
    def unsettled(self) -> int:
        """As `Delivery.unsettled`."""
        return self._delivery.unsettled

    @property
    def status(self) -> ChannelStatus:
        return replace(self._supervisor.status, paused_s=self._delivery.paused_s)

    @property
    def delivering(self) -> bool:
        """Whether it was run and still sends."""
        return self.begun and not self._ended.is_set()

    @property
    def gone(self) -> bool:
        """Whether it has ended, its receiving too."""
        return self._ended.is_set() and self._received.is_set()

    def kick(self) -> None:
        """The outbox may hold something to send."""
        self._delivery.kick()

    async def run(self, receivers: TaskGroup) -> None:
        """Until cancelled or stopped. It receives in `receivers`, whose owner sees to it that a
        channel that will not end does not keep the process."""
        try:
            if self._over:
                self._received.set()
                return
            self.begun = True
            receivers.start_soon(self._receive)
            with self._delivering:
                await self._delivery.run()
        finally:
            self._receiving.cancel()
            self._ended.set()
            self._note_change()

    async def _receive(self) -> None:
        try:
            with self._receiving:
                await self._supervisor.run()
        finally:
            self._received.set()

    async def stop(self, limit_s: float = END_S) -> None:
        """Receive no more, send what is being sent, and end; may be called again. One that was
        not run yet never will. What does not end in time is left behind: a part's outcome is then
        unknown, and a channel that will not go is logged."""
        self._over = True
        self._receiving.cancel()
        self._delivery.finish()
        with anyio.move_on_after(limit_s):
            while self._delivery.sending:
                if self._changed.is_set():
                    self._changed = anyio.Event()
                await self._changed.wait()
        self._delivering.cancel()
        await self._ended.wait()
        with anyio.move_on_after(limit_s) as late:
            await self._received.wait()
        if late.cancelled_caught:
            log.error("channel_left_behind", channel=self.channel.name, after_s=limit_s)

    def _note_change(self) -> None:
        self._changed.set()
        self._on_change()
