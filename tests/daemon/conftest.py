"""What these tests share: a strict model server, and daemons that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import daemon_plugin
from tests.daemon_process import Box, DaemonProcess, plugin_folder, until
from tests.strict_dialect import Reply
from tests.strict_server import ServerProcess

MakeDaemon = Callable[..., DaemonProcess]


@pytest.fixture(scope="session")
def server_process() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


class Model:
    """The model server as one test sees it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.url = server.url

    def script(self, replies: Sequence[Reply]) -> None:
        self._server.script(replies)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies that it was sent, oldest first."""
        return [record["body"] for record in self._server.requests]

    @property
    def refused(self) -> list[str]:
        return [record["refused"] for record in self._server.requests if record["refused"]]

    @property
    def live(self) -> int:
        """Requests that it holds open."""
        return self._server.stats["live"]

    def wait_asked(self, text: str, times: int = 1) -> None:
        """Until `times` requests end with a message that has `text`."""
        until(f"the model is asked {text!r}", lambda: self._asked(text) >= times)

    def _asked(self, text: str) -> int:
        return sum(text in str(body["messages"][-1]["content"]) for body in self.requests)


@pytest.fixture
def model(server_process: ServerProcess) -> Iterator[Model]:
    """Reset for each test; at its end nothing that it was sent may have been illegal."""
    server_process.reset()
    found = Model(server_process)
    yield found
    assert found.refused == []


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as found:
        yield found


@pytest.fixture
def make_daemon(box: Box, model: Model) -> Iterator[MakeDaemon]:
    """Makes a daemon with the tools and the channel of `tests.daemon_plugin`; does not start it."""
    made: list[DaemonProcess] = []

    def make(
        environ: Mapping[str, str] | None = None, *, home: str = "home", before: str = ""
    ) -> DaemonProcess:
        daemon = DaemonProcess(
            box.root / home,
            provider=model.url,
            path=[plugin_folder(box.root / "plugin", daemon_plugin.POINTS)],
            environ={
                daemon_plugin.FOLDER_VARIABLE: str(box.root),
                "TEAAGENTD_TOOLS__ENABLED": '["current_time","marked"]',
                **(environ or {}),
            },
            before=before,
        )
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.__exit__()


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> DaemonProcess:
    """One that is ready."""
    found = make_daemon()
    found.start()
    return found


class Effects:
    """What the test's tools and channel did, and when they may go on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, token: str) -> None:
        until(f"the call for {token} runs", lambda: token in self.tokens())

    def tokens(self) -> list[str]:
        return [entry["token"] for entry in daemon_plugin.notes(self._folder, "effects")]

    def notes(self, name: str) -> list[dict[str, Any]]:
        return daemon_plugin.notes(self._folder, name)

    def release(self, name: str) -> None:
        (self._folder / f"release-{name}").touch()


@pytest.fixture
def effects(box: Box) -> Effects:
    return Effects(box.root)


def said(body: Mapping[str, Any], role: str) -> list[str]:
    """The contents of a request's messages of one role."""
    return [str(one["content"]) for one in body["messages"] if one["role"] == role]


def roles(body: Mapping[str, Any]) -> list[str]:
    return [one["role"] for one in body["messages"]]
