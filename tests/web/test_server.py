"""The server on its socket: its file, its silence when idle, its end."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import anyio
import orjson
import pytest
from anyio.lowlevel import checkpoint

from teaagentd.errors import ConfigError
from teaagentd.types import Delta, SessionKey
from teaagentd.web.socket_file import LONGEST_PATH_BYTES, SocketFile
from tests.web.rig import Rig, second_server, serving, settled, wire

pytestmark = pytest.mark.anyio


# -- the file ---------------------------------------------------------------------------


async def test_only_the_owner_can_reach_the_socket(idle: Rig) -> None:
    mode = os.stat(idle.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(os.stat(idle.path.parent).st_mode) == 0o700


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    with _bound(folder / "s"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_the_file_goes_with_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path, work=False) as rig:
        await rig.end_web()
        assert not rig.path.exists()


async def test_what_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.sock"
    path.parent.mkdir()
    killed = socket.socket(socket.AF_UNIX)
    killed.bind(str(path))
    killed.close()
    async with serving(tmp_path, work=False) as rig:
        assert (await rig.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a socket"):
        SocketFile.bind(path)
    assert os.path.lexists(path)


def test_only_its_own_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    mine = SocketFile.bind(path)
    with _bound(path):
        mine.remove()
        assert path.exists()
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigError, match=str(tmp_path / "run")):
        SocketFile.bind(tmp_path / "run" / "s")


def test_a_long_path_works_or_says_why_not(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    path = folder / "daemon.sock"
    assert len(os.fsencode(path)) > LONGEST_PATH_BYTES
    if not sys.platform.startswith("linux"):
        with pytest.raises(ConfigError, match="shorter"):
            SocketFile.bind(path)
        return
    with _bound(path) as file, socket.socket(socket.AF_UNIX) as client:
        file.socket.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        opened = os.open(folder, os.O_PATH)
        client.connect(f"/proc/self/fd/{opened}/{path.name}")
        os.close(opened)
    assert not path.exists()


@contextmanager
def _bound(path: Path) -> Iterator[SocketFile]:
    file = SocketFile.bind(path)
    try:
        yield file
    finally:
        file.remove()


# -- when idle ----------------------------------------------------------------------------


class _Watched(selectors.DefaultSelector):
    """Notes how long the event loop is ready to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.naps.append(timeout)
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found


def test_an_idle_server_sets_no_timer_under_thirty_seconds(tmp_path: Path) -> None:
    """With kept connections, an event stream and a long poll open."""
    selector = _Watched()

    async def main() -> list[float | None]:
        async with serving(tmp_path) as rig, rig.events() as events:
            await rig.ask("hello")
            async with wire(rig.path) as poller, wire(rig.path) as silent:
                await silent.send(b"GET /healthz HTTP/1.1\r\n")
                target = b"/v1/replies?session_key=nobody&wait=60"
                await poller.send(b"GET %s HTTP/1.1\r\nhost: t\r\n\r\n" % target)
                await anyio.sleep(0.3)  # what was just done comes to rest
                del selector.naps[:]
                await anyio.to_thread.run_sync(time.sleep, 1.0)
                naps = list(selector.naps)
            assert (await anext(events))[0] == "phase"
        return naps

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        naps = runner.run(main())
    assert len(naps) < 10
    assert all(nap is None or nap == 0 or nap > 25 for nap in naps), naps


async def test_hundreds_of_kept_connections_are_served_and_forgotten(idle: Rig) -> None:
    baseline = len(asyncio.all_tasks())
    connections: list[socket.socket] = []
    try:
        for _ in range(400):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, str(idle.path))
            connections.append(one)
        for one in connections:
            one.send(b"GET /v1/status HTTP/1.1\r\nhost: t\r\n\r\n")
        for one in connections:
            with anyio.fail_after(10):
                answer = await asyncio.get_running_loop().sock_recv(one, 4096)
            assert answer.startswith(b"HTTP/1.1 200")
        assert len(asyncio.all_tasks()) <= baseline
    finally:
        for one in connections:
            one.close()
    assert await idle.accepted("hello") == 1


async def test_the_date_goes_on(idle: Rig) -> None:
    dates: list[float] = []
    async with wire(idle.path) as client:
        for wait_s in (0, 1.1):
            await anyio.sleep(wait_s)
            await client.send(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
            _, headers = await client.head()
            await client.body(headers)
            dates.append(parsedate_to_datetime(headers["date"]).timestamp())
    assert dates[0] < dates[1] <= time.time() < dates[1] + 30


# -- what is no request ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_as_a_problem(idle: Rig, garbage: bytes) -> None:
    async with wire(idle.path) as client:
        await client.send(garbage)
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        assert orjson.loads(await client.body(headers))["status"] == 400
        assert await client.closed()


async def test_a_head_without_an_end_is_cut_off(idle: Rig) -> None:
    async with wire(idle.path) as client:
        await client.send(b"GET /healthz HTTP/1.1\r\n")
        line = b"x-filler: " + b"x" * 60_000 + b"\r\n"
        cut_off = False
        for _ in range(200):
            try:
                await client.send(line)
            except ConnectionError:
                cut_off = True
                break
            await checkpoint()
        assert cut_off
    assert (await idle.client.get("/healthz")).status_code == 200


# -- its end ------------------------------------------------------------------------------


async def test_a_request_that_was_begun_is_answered_at_the_end(tmp_path: Path) -> None:
    busy, release = threading.Event(), threading.Event()

    def on_commit(name: str, moment: str) -> None:
        if (name, moment) == ("T0.accept", "before"):
            busy.set()
            release.wait(10)

    async with serving(tmp_path, work=False, on_commit=on_commit) as rig:
        ids: list[int] = []

        async def post() -> None:
            ids.append(await rig.accepted("hello"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post)
            await anyio.to_thread.run_sync(busy.wait)
            rig.web.cancel()
            with anyio.fail_after(5):
                await _until_refused(rig.path)
            assert not rig.web_ended.is_set()
            release.set()
        assert ids == [1]


async def _until_refused(path: Path) -> None:
    while True:
        try:
            async with wire(path):
                await anyio.sleep(0.01)
        except OSError:
            return


async def test_the_end_waits_for_no_one_who_is_silent(idle: Rig) -> None:
    baseline = len(asyncio.all_tasks())
    async with second_server(idle) as (server, path), wire(path) as kept, wire(path) as half:
        await kept.send(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
        _, headers = await kept.head()
        await kept.body(headers)
        await half.send(b"GET /healthz HTTP/1.1\r\nhost")
        await anyio.sleep(0.05)
        with anyio.fail_after(2):
            await server.stop(grace_s=60)
        assert await kept.closed()
        assert await half.closed()
    await settled(baseline)


async def test_the_end_cuts_off_who_does_not_come_to_an_end(idle: Rig) -> None:
    baseline = len(asyncio.all_tasks())
    async with second_server(idle) as (server, path), wire(path) as client:
        await client.send(b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{")
        await anyio.sleep(0.05)
        with anyio.fail_after(5):
            await server.stop(grace_s=0.1)
        assert await client.closed()
    await settled(baseline)
    assert (await idle.daemon.store.depths()).inbox == 0


async def test_the_end_does_not_wait_for_a_stream_that_nobody_reads(rig: Rig) -> None:
    async with second_server(rig) as (server, path), wire(path) as client:
        await client.send(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.head()
        key = SessionKey(channel="api", chat_id="c")
        for number in range(3000):
            rig.daemon.feed.publish(Delta(session_key=key, turn_id="t", text="x" * 2000))
            if number % 20 == 0:
                await checkpoint()
        with anyio.fail_after(20):
            await server.stop(grace_s=60)
