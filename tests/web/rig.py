"""The real API of a real daemon, served on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2

from teaagentd.abc import Channel, LLMAdapter, SystemClock
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.attachments import Attachments
from teaagentd.config import Settings
from teaagentd.core.context import ContextBuilder
from teaagentd.daemon import Daemon
from teaagentd.generation import Generation
from teaagentd.providers.chain import Chain
from teaagentd.store import Store
from teaagentd.testing import ScriptedModel
from teaagentd.web.app import create_app
from teaagentd.web.server import HttpServer, serve_socket
from teaagentd.web.waits import LongWaits

OnCommit = Callable[[str, str], None]


@dataclass(kw_only=True)
class Rig:
    """A daemon whose API answers at `path`; `web` is the scope that its server runs in."""

    daemon: Daemon
    client: httpx2.AsyncClient
    path: Path
    web: anyio.CancelScope
    web_ended: anyio.Event = field(default_factory=anyio.Event)

    async def post(self, content: object = "hello", chat: object = "c", **more: object) -> Any:
        body = {"chat_id": chat, "content": content, **more}
        return await self.client.post("/v1/messages", json=body)

    async def accepted(self, content: str = "hello", chat: str = "c", **more: object) -> int:
        answer = await self.post(content, chat, **more)
        assert answer.status_code == 202, answer.text
        message_id: int = answer.json()["id"]
        return message_id

    async def replies(self, key: str = "api:c", **query: float) -> Any:
        asked = {"session_key": key} | {name: str(value) for name, value in query.items()}
        answer = await self.client.get("/v1/replies", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ask(self, content: str = "hello", chat: str = "c") -> dict[str, Any]:
        """Post, and wait for the text that answers."""
        message_id = await self.accepted(content, chat)
        after = 0
        with anyio.fail_after(20):
            while True:
                for reply in await self.replies(f"api:{chat}", after=after, wait=20):
                    after = reply["id"]
                    if message_id in reply["message_ids"]:
                        found: dict[str, Any] = reply
                        return found

    @asynccontextmanager
    async def events(self, **query: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        async with self.client.sse("/v1/events", params=query) as source:

            async def pairs() -> AsyncIterator[tuple[str, Any]]:
                async for event in source:
                    yield event.event, httpx2.Response(200, text=event.data).json()

            yield pairs()

    async def end_web(self) -> None:
        """Cancel the server, as the daemon's end does, and wait until it is gone."""
        self.web.cancel()
        with anyio.fail_after(10):
            await self.web_ended.wait()


def connect(path: Path) -> httpx2.AsyncClient:
    """A client for any number of connections."""
    transport = httpx2.AsyncHTTPTransport(
        uds=str(path), verify=False, limits=httpx2.Limits(max_connections=None)
    )
    return httpx2.AsyncClient(transport=transport, base_url="http://daemon", timeout=20)


@asynccontextmanager
async def serving(
    home: Path,
    model: LLMAdapter | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    channels: Sequence[Channel] = (),
    work: bool = True,
    on_commit: OnCommit | None = None,
) -> AsyncIterator[Rig]:
    """A daemon in `home`; with `work` false it accepts and answers nothing."""
    (home / "workspace").mkdir(exist_ok=True)
    made = Settings.model_validate({"home": home, **(settings or {})})
    store = await Store.open(
        home / "state.db",
        clock=SystemClock(),
        max_pending=made.bus.max_pending,
        on_commit=on_commit,
    )
    path = home / "run" / "daemon.sock"
    try:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as strays:
            clock = SystemClock()
            files = Attachments(home / "files")
            generation = Generation(
                made,
                chain=Chain.of(model or ScriptedModel(default="an answer")),
                registry=ToolRegistry([]),
                channels={channel.name: channel for channel in channels},
                context=ContextBuilder(workspace=home / "workspace", clock=clock),
                senders={},
                files=files,
                clock=clock,
                strays=strays,
            )
            daemon = Daemon(generation, store=store, files=files, strays=strays)
            daemon.feed.newest_reply = await store.newest_reply()
            async with connect(path) as client:
                web = anyio.CancelScope()
                rig = Rig(daemon=daemon, client=client, path=path, web=web)
                await tasks.start(_serve, rig)
                if work:
                    tasks.start_soon(daemon.loop.run)
                    tasks.start_soon(daemon.dispatcher.run)
                yield rig
                await rig.end_web()
            tasks.cancel_scope.cancel()
            strays.cancel_scope.cancel()
    finally:
        await store.aclose()


async def _serve(rig: Rig, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    try:
        with rig.web:
            await serve_socket(rig.daemon, rig.path, task_status=task_status)
    finally:
        rig.web_ended.set()


@asynccontextmanager
async def second_server(
    rig: Rig, *, keep_alive_s: float = 30.0
) -> AsyncIterator[tuple[HttpServer, Path]]:
    """Another server of the same daemon, in the test's own hands."""
    path = rig.path.with_name("second.sock")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    waits = LongWaits()
    server = HttpServer(create_app(rig.daemon, waits, keep_alive_s=keep_alive_s), waits)
    await server.start(bound)
    try:
        yield server, path
    finally:
        await server.stop()


class Wire:
    """A client that says exactly what it is told to."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        with anyio.fail_after(10):
            await self._loop.sock_sendall(self._socket, data)

    async def some(self) -> bytes:
        """What comes next; raises `ConnectionError` when nothing more will."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        with anyio.fail_after(10):
            data = await self._loop.sock_recv(self._socket, 65536)
        if not data:
            raise ConnectionError("the server hung up")
        return data

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self.some()
        head, _, self._buffer = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def body(self, headers: Mapping[str, str]) -> bytes:
        length = int(headers["content-length"])
        data = b""
        while len(data) < length:
            data += await self.some()
        self._buffer = data[length:]
        return data[:length]

    async def closed(self) -> bool:
        """Whether the server hangs up, with nothing more to say."""
        try:
            await self.some()
        except ConnectionError:
            return True
        return False


@asynccontextmanager
async def wire(path: Path) -> AsyncIterator[Wire]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, str(path))
        yield Wire(connected)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true."""
    with anyio.fail_after(10):
        while True:
            if condition():
                return
            await anyio.sleep(0.01)


async def settled(baseline: int) -> None:
    """Until no more tasks live than `baseline`."""
    await until(lambda: len(asyncio.all_tasks()) <= baseline)
