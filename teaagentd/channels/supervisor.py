"""ChannelSupervisor: keeps one channel receiving."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
import structlog

from teaagentd.abc import Channel, Clock, Inbox

ChannelState: TypeAlias = Literal["stopped", "running", "restarting"]

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartLimits:
    """How a channel that ended is started again; times in seconds."""

    first_wait_s: float = 1.0
    """Doubled for each end that follows."""
    longest_wait_s: float = 300.0
    good_while_s: float = 600.0
    """A channel that lived this long starts over with the first wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelStatus:
    """How one push channel fares. `since` is in milliseconds since the epoch, UTC."""

    name: str
    state: ChannelState
    since: int
    restarts: int = 0
    error: str | None = None
    """Why it ended last."""
    paused_s: float = 0.0
    """How long its sends still wait, because it asked for it."""


class ChannelSupervisor:
    """Runs one channel, and again after each end, at growing distances that shrink only after
    it has lived a good while. Whatever the channel raises, the others go on."""

    def __init__(
        self, *, channel: Channel, inbox: Inbox, clock: Clock, limits: RestartLimits
    ) -> None:
        self._channel = channel
        self._inbox = inbox
        self._clock = clock
        self._limits = limits
        self.status = ChannelStatus(name=channel.name, state="stopped", since=clock.now_ms())

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = self._limits.first_wait_s
        restarts = 0
        while True:
            self._now("running", restarts)
            began = self._clock.monotonic()
            problem = await self._run_once()
            if self._clock.monotonic() - began >= self._limits.good_while_s:
                wait_s = self._limits.first_wait_s
            restarts += 1
            self._now("restarting", restarts, problem)
            log.warning(
                "channel_ended", channel=self._channel.name, reason=problem, restart_in_s=wait_s
            )
            await anyio.sleep(wait_s)
            wait_s = min(wait_s * 2, self._limits.longest_wait_s)

    async def _run_once(self) -> str:
        """Why it ended, in words."""
        try:
            await self._channel.run(self._inbox)
        except BaseException as error:
            # A plugin may raise anything, exits included.
            if is_ending(error):
                raise
            log.error("channel_raised", channel=self._channel.name, exc_info=error)
            return f"it raised {type(error).__name__}"
        return "it returned"

    def _now(self, state: ChannelState, restarts: int, error: str | None = None) -> None:
        self.status = ChannelStatus(
            name=self._channel.name,
            state=state,
            since=self._clock.now_ms(),
            restarts=restarts,
            error=error or self.status.error,
        )


def is_ending(error: BaseException) -> bool:
    """Whether `error` is our own end and not a channel's: a cancellation from outside, the
    closing of the coroutine, or the interrupt key."""
    if isinstance(error, (GeneratorExit, KeyboardInterrupt)):
        return True
    cancelled = isinstance(error, anyio.get_cancelled_exc_class())
    return cancelled and anyio.current_effective_deadline() == -math.inf
