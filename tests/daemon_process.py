"""A real daemon for tests: started, asked over its socket, killed, restarted, looked into.

    with Box() as box, ServerProcess() as server:
        daemon = DaemonProcess(box.home, provider=server.url)
        daemon.start()
        posted = daemon.post("anna", "hello")
        [answer] = daemon.answers("api:anna", to=posted)
        daemon.kill()
        daemon.start()

Everything here blocks; the daemon is a process of its own. `Unreachable` is raised when it is
gone, so that a test that kills it knows a lost answer from a refusal.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import orjson

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
"""How long anything is waited for: far longer than it takes, so that only a hang meets it."""


class Unreachable(Exception):
    """Nothing answers on the socket: the daemon is not there, or went away meanwhile."""


class Box:
    """A folder with a short path (a socket's may have about 100 bytes), gone at the end."""

    def __init__(self, prefix: str = "tead") -> None:
        self.root = Path(tempfile.mkdtemp(prefix=prefix))
        self.home = self.root / "home"

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *details: object) -> None:
        for folder, _, _ in os.walk(self.root):
            os.chmod(folder, 0o700)
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon answered over HTTP."""

    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("teaagentd", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def request(
    path: Path, method: str, target: str, body: object = None, *, timeout_s: float = PATIENCE_S
) -> Answer:
    """One request over a Unix socket, on a connection of its own. `body` is sent as JSON, or as
    it is if it is bytes. Raises `Unreachable`."""
    connection = _SocketConnection(path, timeout_s)
    try:
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        headers = {"content-type": "application/json"} if data is not None else {}
        connection.request(method, target, data, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers.get_content_type(), response.read())
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{method} {target}: {error!r}") from error
    finally:
        connection.close()


def plugin_folder(folder: Path, points: Mapping[str, Mapping[str, str]]) -> Path:
    """A folder for PYTHONPATH with an installed distribution of these entry points
    (group → name → `module:function`), and nothing else."""
    info = folder / "teaagentd_under_test-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: teaagentd-under-test\nVersion: 1.0\n"
    )
    lines: list[str] = []
    for group, names in points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


class DaemonProcess:
    """`python -m teaagentd run` on one home, which may be started again and again."""

    def __init__(
        self,
        home: Path,
        *,
        provider: str | None = None,
        environ: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
        before: str = "",
    ) -> None:
        """`provider` is the base URL of an OpenAI server; `path` is put on PYTHONPATH; `before`
        is Python that the process runs before it becomes the daemon, to limit itself."""
        self.home = home
        self.socket = home / "run" / "teaagentd.sock"
        self.log_file = home.parent / f"{home.name}.log"
        self._path = os.pathsep.join([str(ROOT), *map(str, path)])
        self._given = dict(environ or {})
        self._provider = provider
        self._before = before
        self._process: subprocess.Popen[bytes] | None = None

    # -- the process --------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; `-signal.SIGKILL` after a kill, as `subprocess` has it."""
        return self._process.poll() if self._process is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the process gets to see: nothing of this machine's own keys and homes."""
        environ = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
        }
        environ.update(PYTHONPATH=self._path, PYTHONUNBUFFERED="1")
        if self._provider is not None:
            environ.update(
                TEAAGENTD_PROVIDER__TYPE="openai",
                TEAAGENTD_PROVIDER__BASE_URL=self._provider,
                TEAAGENTD_PROVIDER__API_KEY="key-of-the-test",
                TEAAGENTD_PROVIDER__MODEL="strict",
            )
        environ.update(self._given)
        environ.update(extra or {})
        return environ

    def launch(self, extra: Mapping[str, str] | None = None) -> None:
        """Start the process and do not wait for it."""
        assert not self.alive, "it runs already"
        command = [sys.executable, "-m", "teaagentd", "run", "--home", str(self.home)]
        if self._before:
            become = "import os, sys; os.execv(sys.executable, sys.argv[1:])"
            command = [sys.executable, "-c", f"{self._before}\n{become}", *command]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.home.parent,
                env=self.environ(extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start the process and wait until it answers. Raises `Unreachable` if it ends first."""
        self.launch(extra)
        self.wait_ready()

    def wait_ready(self, timeout_s: float = PATIENCE_S, step_s: float = 0.02) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise Unreachable(f"it ended with {self.exit_status} before it was ready")
            with suppress(Unreachable):
                if self.call("GET", "/healthz").status == 200:
                    return
            time.sleep(step_s)
        raise AssertionError(f"the daemon was not ready in {timeout_s} s:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.wait_exit()

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait_exit(self, timeout_s: float = PATIENCE_S) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"it did not end in {timeout_s} s:\n{self.log()[-4000:]}"
            ) from None

    def log(self) -> str:
        """All that every process on this home wrote so far."""
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill() if self.alive else None

    # -- its API ------------------------------------------------------------------------

    def call(
        self, method: str, target: str, body: object = None, *, timeout_s: float = PATIENCE_S
    ) -> Answer:
        return request(self.socket, method, target, body, timeout_s=timeout_s)

    def upload(self, target: str, data: bytes) -> Answer:
        """POST `data` as it is."""
        return self.call("POST", target, data)

    def offer(self, chat_id: str, content: object, **fields: object) -> Answer:
        """POST a message and return whatever is answered."""
        body = {"chat_id": chat_id, "content": content, **fields}
        return self.call("POST", "/v1/messages", body)

    def post(self, chat_id: str, content: str, **fields: object) -> int:
        """POST a message that must be accepted; its id."""
        answer = self.offer(chat_id, content, **fields)
        assert answer.status == 202, answer
        message_id: int = answer.json["id"]
        return message_id

    def replies(self, key: str, *, after: int = 0, wait: float = 0) -> list[dict[str, Any]]:
        """One page of the session's texts after id `after`, oldest first."""
        query = urlencode({"session_key": key, "after": after, "wait": wait})
        answer = self.call("GET", f"/v1/replies?{query}")
        assert answer.status == 200, answer
        page: list[dict[str, Any]] = answer.json
        return page

    def all_replies(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := self.replies(key, after=found[-1]["id"] if found else 0):
            found += page
        return found

    def answer(self, key: str, to: int) -> dict[str, Any]:
        """The text (final or interim) that answers the accepted message `to`, waited for."""
        after = 0
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for reply in self.replies(key, after=after, wait=5):
                after = reply["id"]
                if to in reply["message_ids"]:
                    return reply
        raise AssertionError(f"message {to} of {key} was not answered:\n{self.log()[-4000:]}")

    def ask(self, chat_id: str, content: str, **fields: object) -> str:
        """Post to the default channel and wait for the answer's text."""
        text: str = self.answer(f"api:{chat_id}", self.post(chat_id, content, **fields))["content"]
        return text

    def status(self) -> dict[str, Any]:
        answer = self.call("GET", "/v1/status")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json
        return found

    def session(self, key: str) -> dict[str, Any]:
        answer = self.call("GET", f"/v1/sessions/{quote(key, safe='')}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json
        return found

    def stop_session(self, key: str) -> Answer:
        return self.call("POST", f"/v1/sessions/{quote(key, safe='')}/stop", {})

    @contextmanager
    def events(self, key: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The session's events from now on, as (name, data)."""
        connection = _SocketConnection(self.socket, PATIENCE_S)
        try:
            connection.request("GET", f"/v1/events?{urlencode({'session_key': key})}")
            response = connection.getresponse()
            assert response.status == 200, response.status
            yield _events(response)
        finally:
            connection.close()

    # -- its file -----------------------------------------------------------------------

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read the database beside the daemon."""
        uri = f"file:{quote(str(self.home / 'state.db'))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=30)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name, data = "message", ""
    for line in _lines(response):
        if not line:
            if data:
                yield name, orjson.loads(data)
            name, data = "message", ""
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()


def _lines(response: http.client.HTTPResponse) -> Iterable[str]:
    while line := response.readline():
        yield line.decode().rstrip("\r\n")


def until(what: str, condition: Any, timeout_s: float = PATIENCE_S, step_s: float = 0.02) -> Any:
    """Wait until `condition()` is true and return it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(step_s)
    raise AssertionError(f"waited {timeout_s} s in vain until {what}")
