"""The service manager: tells systemd that the daemon is ready, alive or ending.

The protocol is that of sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names. Without
one, nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType

import anyio
import structlog

log = structlog.get_logger()

_SHORTEST_BEAT_S = 30.0


class ServiceManager:
    """Whoever started the daemon, as far as it wants to be told. An async context manager."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> ServiceManager:
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    async def keep_alive(self, alive: Callable[[], Awaitable[None]]) -> None:
        """Feed the watchdog, if there is one, as long as `alive` answers in time. It beats at a
        third of the watchdog's time, but never more often than every 30 s."""
        watchdog_us = os.environ.get("WATCHDOG_USEC", "")
        if self._socket is None or not watchdog_us.isdigit():
            return
        beat_s = max(int(watchdog_us) / 3_000_000, _SHORTEST_BEAT_S)
        while True:
            with anyio.move_on_after(beat_s) as late:
                await alive()
            if late.cancelled_caught:
                log.error("writer_silent", for_s=beat_s)
            else:
                self._send("WATCHDOG=1")
            await anyio.sleep(beat_s)

    def _send(self, state: str) -> None:
        if self._socket is None:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            self._socket.sendto(state.encode(), address)
        except OSError as error:
            log.warning("notify_failed", state=state, error=str(error))
