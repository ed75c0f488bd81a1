"""A database that something else has written over, at many places, at rest and under a daemon."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.daemon.conftest import MakeDaemon
from tests.daemon_process import DaemonProcess, Unreachable, until

TURNS = 40
PLACES = 12
GARBAGE = (b"\xff", b"\x00", bytes(range(256)) * 2)
DAMAGED = 65


@pytest.fixture
def kept(make_daemon: MakeDaemon) -> DaemonProcess:
    """A home with a history, at rest."""
    daemon = make_daemon()
    daemon.start()
    for number in range(TURNS):
        daemon.ask(f"chat-{number % 4}", f"message {number} [[say:answer {number} {'x' * 900}]]")
    assert daemon.terminate() == 0
    return daemon


def overwrite(state: Path, place: int) -> None:
    """Part of a page, somewhere in the file; its end is reached with the last place."""
    size = state.stat().st_size
    garbage = (GARBAGE[place % len(GARBAGE)] * 512)[:512]
    with state.open("r+b") as file:
        file.seek(size * place // PLACES + (0 if place == 0 else 40))
        file.write(garbage)


def sound(state: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as file:
            return file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def doctor(daemon: DaemonProcess) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "teaagentd", "--home", str(daemon.home), "doctor", "--json"],
        env=daemon.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    return {one["check"]: one["level"] for one in json.loads(done.stdout)}


def speaks(daemon: DaemonProcess) -> bool:
    """Whether a new message is answered; where it is not, that is said and the file is named."""
    answer = daemon.offer("new", "hello")
    if answer.status == 202:
        found = until("it is answered, or said", lambda: _reply(daemon, answer.json["id"]))
        return found == "answered"
    assert answer.status in (500, 503)
    assert "state.db" in answer.body.decode()
    return False


def _reply(daemon: DaemonProcess, message: int) -> str | None:
    answer = daemon.call("GET", "/v1/replies?session_key=api:new")
    if answer.status != 200:
        assert answer.status in (500, 503)
        assert "state.db" in answer.body.decode()
        return "refused"
    if any(message in one["message_ids"] for one in answer.json):
        return "answered"
    alerts = daemon.call("GET", "/v1/status").json.get("alerts", ())
    told = any(one["kind"] == "database" and "state.db" in one["text"] for one in alerts)
    return "alert" if told else None


@pytest.mark.timeout(240)
def test_before_a_start_it_is_refused_and_kept_or_served_and_never_emptied(
    kept: DaemonProcess, make_daemon: MakeDaemon
) -> None:
    state = kept.home / "state.db"
    whole = state.read_bytes()
    refused = served = 0
    for place in range(PLACES):
        state.write_bytes(whole)
        overwrite(state, place)
        damaged = state.read_bytes()
        with suppress(Unreachable):
            kept.start()
        if not kept.alive:
            refused += 1
            assert kept.exit_status == DAMAGED
            assert str(state) in kept.log()
            assert state.read_bytes() == damaged
        else:
            served += 1
            if speaks(kept):
                assert len(kept.query("SELECT id FROM inbox")) == TURNS + 1
            kept.kill()
            if not sound(state):
                assert doctor(kept)["database"] == "failure"
        for name in ("state.db-wal", "state.db-shm"):
            (kept.home / name).unlink(missing_ok=True)
    assert refused
    assert served


@pytest.mark.timeout(240)
def test_under_a_running_daemon_it_is_said_and_what_is_sound_goes_on(
    kept: DaemonProcess, tmp_path: Path
) -> None:
    state = kept.home / "state.db"
    whole = tmp_path / "whole"
    shutil.copytree(kept.home, whole)
    for place in range(0, PLACES, 2):
        shutil.rmtree(kept.home)
        shutil.copytree(whole, kept.home)
        kept.start()
        overwrite(state, place)
        speaks(kept)
        for number in range(4):
            answer = kept.call("GET", f"/v1/sessions/api:chat-{number}")
            assert answer.status in (200, 500, 503)
        assert kept.alive
        kept.kill()
        assert state.stat().st_size >= (whole / "state.db").stat().st_size
