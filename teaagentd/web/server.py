"""HttpServer: serves the API on a socket without a tick, and ends without cutting anyone off.

It drives uvicorn's protocol, not its server: that one wakes ten times a second, for the `Date`
header and to look whether it should end, and takes the process's signals.
"""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from teaagentd.web.app import create_app
from teaagentd.web.problems import MEDIA_TYPE, Problem
from teaagentd.web.served import Served
from teaagentd.web.socket_file import SocketFile
from teaagentd.web.waits import LongWaits

KEEP_ALIVE_S = 65
"""How long a connection without a request stays open; the only timer, one for each of them."""
GRACE_S = 5.0
_READING_S = 1.0
_ABORT_S = 1.0
_MAX_HEAD_BYTES = 1 << 20

log = structlog.get_logger()


class _State(ServerState):
    """What the connections of one server share."""

    def __init__(self) -> None:
        super().__init__()
        self.no_connections = asyncio.Event()
        self._second = 0

    def refresh(self) -> None:
        """Set the `Date` header that the next response carries."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.default_headers = [(b"date", formatdate(second, usegmt=True).encode())]


class _Connection(HttpToolsProtocol):
    """One client's connection."""

    server_state: _State
    _head_bytes: int | None = None
    """Of the request whose head is being read, None between heads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above has it
        self.server_state.no_connections.clear()
        self._waits = LongWaits()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waits.end()
        if not self.connections:
            self.server_state.no_connections.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, "the head of the request is too large")

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self.server_state.refresh()
        super().on_message_begin()
        self.scope["extensions"] = self._waits.extension()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a request in HTTP/1.1")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer what never became a request, and hang up."""
        problem = Problem(status, detail)
        body = problem.body()
        self.transport.write(
            f"HTTP/1.1 {status} {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()


class HttpServer:
    """Serves `app` on a bound socket. All of it belongs to one event loop."""

    def __init__(self, app: ASGIApp, waits: LongWaits) -> None:
        self._waits = waits
        self._state = _State()
        self._config = Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            workers=1,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._server: asyncio.Server | None = None

    async def start(self, bound: socket.socket) -> None:
        """Listen. The socket is closed with the server."""
        loop = asyncio.get_running_loop()
        connect = partial(_Connection, self._config, self._state, {}, loop)
        self._server = await loop.create_server(connect, sock=bound, backlog=self._config.backlog)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Take no new request, end streams and long polls now, and give the other requests up
        to `grace_s` seconds to be answered, and a second more to whoever reads slowly. What is
        left then is cancelled."""
        assert self._server is not None
        self._server.close()
        self._waits.end()
        for connection in list(self._state.connections):
            connection.shutdown()
        with anyio.move_on_after(grace_s):
            await self._answered()
        with anyio.move_on_after(_READING_S):
            await self._finished()
        if self._state.tasks or self._state.connections:
            log.warning("requests_cut_off", count=len(self._state.tasks))
            for task in self._state.tasks:
                task.cancel()
            for connection in list(self._state.connections):
                connection.transport.abort()
            with anyio.move_on_after(_ABORT_S):
                await self._finished()

    async def _answered(self) -> None:
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)

    async def _finished(self) -> None:
        """Every request is answered and every connection closed."""
        await self._answered()
        if self._state.connections:
            await self._state.no_connections.wait()


async def serve_socket(
    daemon: Served, path: Path, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve the API of `daemon` on a socket at `path` until cancelled, then end as `HttpServer`
    does. The caller holds the lock of the home. Raises `ConfigError`."""
    file = await anyio.to_thread.run_sync(SocketFile.bind, path)
    try:
        waits = LongWaits()
        server = HttpServer(create_app(daemon, waits), waits)
        await server.start(file.socket)
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(file.remove)
