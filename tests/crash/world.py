"""One daemon that is killed and started again, its strict model server, and clients that
redeliver whatever they got no answer to."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import daemon_plugin as plugin
from tests.daemon_process import (
    PATIENCE_S,
    Answer,
    Box,
    DaemonProcess,
    Unreachable,
    plugin_folder,
)
from tests.strict_dialect import Reply
from tests.strict_server import ServerProcess

FAILPOINT = "TEAAGENTD_FAILPOINT"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a client was told is accepted."""

    id: int
    key: str
    content: str
    external_id: str

    @property
    def command(self) -> bool:
        return self.content.startswith("/")


class World:
    """Everything that a crash scenario plays in. Ends every process that it started."""

    def __init__(self, replies: Sequence[Reply] = (), environ: Mapping[str, str] | None = None):
        self.box = Box("teacrash")
        self.folder = self.box.root
        self.requests_file = self.folder / "requests.jsonl"
        self.server = ServerProcess(replies, log=self.requests_file)
        self.sent: list[Sent] = []
        self.deaths: list[int] = []
        """How each daemon that fell by itself, not by our hand, ended."""
        self.retried: dict[int, int] = {}
        """Dead messages and what they were accepted as anew."""
        self._environ = dict(environ or {})
        self._armed: list[str] = []
        self._daemon: DaemonProcess | None = None
        self._lock = threading.RLock()
        self._numbers = itertools.count()

    def __enter__(self) -> World:
        self.server.start()
        plugins = plugin_folder(self.folder / "plugin", plugin.POINTS)
        self._daemon = DaemonProcess(
            self.box.home,
            provider=self.server.url,
            path=[plugins],
            environ={
                plugin.FOLDER_VARIABLE: str(self.folder),
                "TEAAGENTD_TOOLS__ENABLED": '["current_time","marked"]',
                "TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}',
                "TEAAGENTD_SHUTDOWN__DRAIN_TIMEOUT_S": "0.2",
                **self._environ,
            },
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._daemon is not None:
            print("the daemon's log:\n" + self.daemon.log()[-8000:])
        if self._daemon is not None:
            self._daemon.__exit__()
        self.server.stop()
        self.box.__exit__()

    @property
    def daemon(self) -> DaemonProcess:
        assert self._daemon is not None
        return self._daemon

    # -- the daemon's deaths ------------------------------------------------------------

    def arm(self, *points: str) -> None:
        """Fail points for the next starts, one each, in this order."""
        self._armed = list(points)

    def revive(self) -> None:
        """Have a daemon that answers: start one as often as it takes. A start under a fail point
        may end before it is ready."""
        with self._lock:
            for _ in range(20):
                if self.daemon.alive:
                    return
                self._bury()
                point = self._armed.pop(0) if self._armed else ""
                self.daemon.launch({FAILPOINT: point})
                try:
                    self.daemon.wait_ready()
                    return
                except Unreachable:
                    continue
            raise AssertionError("it does not stay up:\n" + self.daemon.log()[-8000:])

    def launch(self) -> None:
        """Start the daemon and do not wait for it."""
        with self._lock:
            self.daemon.launch()

    def _bury(self) -> None:
        status = self.daemon.exit_status
        if status is not None:
            self.deaths.append(status)
            assert status in (-signal.SIGKILL, 0), (
                f"it ended with {status}:\n" + self.daemon.log()[-8000:]
            )

    @property
    def fallen(self) -> int:
        """How often a fail point has struck so far, also the one that nobody has buried yet."""
        ended = self.daemon.exit_status == -signal.SIGKILL
        return self.deaths.count(-signal.SIGKILL) + ended

    # -- the clients --------------------------------------------------------------------

    def call(self, method: str, target: str, body: object = None) -> Answer:
        """One request, again until it is answered."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.revive()
            try:
                return self.daemon.call(method, target, body)
            except Unreachable:
                time.sleep(0.01)
        raise AssertionError(f"{method} {target} was not answered in {PATIENCE_S} s")

    def send(
        self, chat_id: str, content: str, *, channel: str = "api", patient: bool = False
    ) -> Sent:
        """Have a message accepted. It bears an external id and is redelivered until a 202. A
        `patient` client leaves starting the daemon to someone else."""
        external_id = f"{chat_id}-{next(self._numbers)}"
        found = self._deliver(_body(chat_id, content, channel, external_id), patient)
        sent = Sent(found["id"], found["session_key"], content, external_id)
        with self._lock:
            self.sent.append(sent)
        return sent

    def redeliver(self, sent: Sent, chat_id: str, channel: str) -> None:
        """Post an accepted message again, as a client does whose 202 was lost."""
        body = _body(chat_id, sent.content, channel, sent.external_id)
        found = self._deliver(body, patient=True)
        assert found["duplicate"], found
        assert found["id"] == sent.id, (found, sent)

    def _deliver(self, body: Mapping[str, str], patient: bool) -> dict[str, Any]:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if not patient:
                    self.revive()
                answer = self.daemon.call("POST", "/v1/messages", body)
            except Unreachable:
                time.sleep(0.02)
                continue
            if answer.status == 202:
                found: dict[str, Any] = answer.json
                return found
            assert answer.status in (429, 503), answer
            time.sleep(0.05)
        raise AssertionError(f"{body} was not accepted:\n" + self.daemon.log()[-8000:])

    def retry(self, dead: Sent) -> None:
        """Have a dead message taken up again, as a new one."""
        answer = self.call("POST", f"/v1/inbox/{dead.id}/retry")
        assert answer.status == 202, answer
        found = answer.json
        self.retried[dead.id] = found["id"]

    def operate(self, method: str, target: str, body: object = None) -> None:
        """Have something done that an operator asks for; it may have been, before a fall."""
        answer = self.call(method, target, body)
        assert answer.status < 500, answer

    def forget(self, key: str) -> None:
        """What was sent to this session was deleted: nothing is expected of it."""
        with self._lock:
            self.sent = [sent for sent in self.sent if sent.key != key]

    def configure(self, text: str) -> None:
        """Give the home another configuration, and have the daemon look at it."""
        (self.box.home / "config.toml").write_text(text)
        self.daemon.signal(signal.SIGHUP)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until something has happened, or the daemon has fallen, which excuses it."""
        before = self.fallen
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if condition() or self.fallen > before or not self.daemon.alive:
                return
            time.sleep(0.01)
        raise AssertionError(f"waited in vain until {what}:\n" + self.daemon.log()[-8000:])

    def asked(self, text: str, times: int = 1) -> bool:
        """Whether the model was asked `times` with `text` in the newest message of a request."""
        newest = [str(one["body"]["messages"][-1].get("content")) for one in self.requests()]
        return sum(text in content for content in newest) >= times

    def did(self, token: str) -> bool:
        return any(token in str(entry["token"]) for entry in plugin.notes(self.folder, "effects"))

    def release(self, name: str) -> None:
        (self.folder / f"release-{name}").touch()

    # -- quiet --------------------------------------------------------------------------

    def settle(self) -> None:
        """Keep the daemon alive until nothing is left to do."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < deadline:
            self.revive()
            # What stands in the file may be the last commit of a process that dies of it.
            if not self.restless() and self._answers():
                return
            time.sleep(0.05)
        raise AssertionError(
            f"it does not come to rest: {self.restless()}\n" + self.daemon.log()[-8000:]
        )

    def _answers(self) -> bool:
        try:
            return self.daemon.call("GET", "/healthz").status == 200
        except Unreachable:
            return False

    def restless(self) -> dict[str, int]:
        """What is still to be done, by name; nothing of it when quiet."""
        counts = {
            "waiting messages": "SELECT count(*) FROM inbox WHERE state IN ('pending', 'claimed')",
            "running turns": "SELECT count(*) FROM turns WHERE state = 'running'",
            "unsent texts": "SELECT count(*) FROM outbox WHERE state = 'pending'",
        }
        found = {name: self.daemon.query(sql)[0][0] for name, sql in counts.items()}
        return {name: count for name, count in found.items() if count}

    def requests(self) -> list[dict[str, Any]]:
        """Every request that the model got, whatever died meanwhile."""
        return read_lines(self.requests_file)


def _body(chat_id: str, content: str, channel: str, external_id: str) -> dict[str, str]:
    return {
        "channel": channel,
        "chat_id": chat_id,
        "content": content,
        "external_id": external_id,
        "sender_id": "tester",
    }


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON objects that may be growing."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
