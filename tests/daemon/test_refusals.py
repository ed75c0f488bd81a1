"""What the real daemon refuses, in messages and in homes, living on or leaving all as it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.daemon.conftest import MakeDaemon, Model
from tests.daemon_process import Answer, DaemonProcess, Unreachable

NO_ROOT_OVERRIDE = """
import ctypes
libc = ctypes.CDLL(None)
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: file modes bind root, too
    libc.prctl(24, capability, 0, 0, 0)
"""
FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
"""
"""No file may grow beyond that: to SQLite a disk without room."""


def is_problem(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert answer.content_type == "application/problem+json"
    assert answer.json["status"] == status
    assert answer.json["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"content": None}, "content"),
        ({"content": 42}, "content"),
        ({"content": " \n"}, "content"),
        ({"content": ["hello"]}, "content"),
        ({"chat_id": ""}, "chat_id"),
        ({"chat_id": 7}, "chat_id"),
        ({"channel": "nowhere"}, "channel"),
        ({"sender_id": {}}, "sender_id"),
        ({"external_id": 1.5}, "external_id"),
        ({"attachment": "/etc/passwd"}, "attachment"),
    ],
    ids=str,
)
def test_a_bad_message_names_its_field(
    daemon: DaemonProcess, fields: dict[str, object], field: str
) -> None:
    """And silences nothing: the next one is answered. (HKUDS/nanobot#5457)"""
    answer = daemon.call("POST", "/v1/messages", {"chat_id": "anna", "content": "hello", **fields})
    is_problem(answer, 422)
    assert answer.json["field"] == field
    assert daemon.status()["inbox"]["depth"] == 0
    assert daemon.ask("anna", "hello")


def test_a_message_that_is_too_large_is_refused(daemon: DaemonProcess) -> None:
    is_problem(daemon.offer("anna", "x" * 5_000_000), 413)
    is_problem(daemon.offer("anna", "x" * (1 << 20)), 413)
    assert daemon.ask("anna", "x" * 1_000_000)


def test_an_external_id_is_accepted_once(daemon: DaemonProcess, model: Model) -> None:
    first = daemon.offer("anna", "hello", external_id="m1")
    again = daemon.offer("anna", "hello", external_id="m1")
    assert again.json == {**first.json, "duplicate": True}
    is_problem(daemon.offer("anna", "other", external_id="m1"), 409)
    elsewhere = daemon.offer("bert", "other", external_id="m1")
    assert not elsewhere.json["duplicate"]
    daemon.answer("api:anna", first.json["id"])
    daemon.answer("api:bert", elsewhere.json["id"])
    assert len(model.requests) == 2


def test_a_full_inbox_refuses_and_keeps_what_it_has(make_daemon: MakeDaemon, model: Model) -> None:
    """A redelivered message is no new one, so it is taken as a duplicate even then."""
    daemon = make_daemon({"TEAAGENTD_BUS__MAX_PENDING": "3"})
    daemon.start()
    running = daemon.post("anna", "[[wait:1500]]")
    model.wait_asked("[[wait:1500]]")
    kept = [daemon.post("anna", f"m{number}", external_id=f"m{number}") for number in range(3)]
    is_problem(daemon.offer("anna", "m3", external_id="m3"), 429)
    again = daemon.offer("anna", "m2", external_id="m2")
    assert (again.status, again.json["duplicate"]) == (202, True)
    daemon.answer("api:anna", running)
    for message in kept:
        daemon.answer("api:anna", message)
    assert daemon.ask("anna", "m3", external_id="m3")


def test_what_is_no_request_is_answered_and_does_no_harm(daemon: DaemonProcess) -> None:
    is_problem(daemon.call("POST", "/v1/messages", b"{not json"), 400)
    is_problem(daemon.call("POST", "/v1/messages", []), 422)
    is_problem(daemon.call("GET", "/v1/nothing"), 404)
    is_problem(daemon.call("PUT", "/v1/messages", {}), 405)
    is_problem(daemon.call("GET", "/v1/replies"), 422)
    is_problem(daemon.call("GET", "/v1/replies?session_key=api:anna&after=x"), 422)
    assert daemon.call("GET", "/healthz").status == 200


# -- homes ------------------------------------------------------------------------------


def test_a_second_daemon_is_refused_and_names_the_first(
    make_daemon: MakeDaemon, model: Model
) -> None:
    first, second = make_daemon(), make_daemon()
    first.start()
    with pytest.raises(Unreachable):
        _start_alone(second)
    assert second.exit_status == 75
    assert str(first.pid) in second.log().splitlines()[-1]
    assert first.ask("anna", "hello")


def _start_alone(daemon: DaemonProcess) -> None:
    """Start a process that is to end by itself; another one's socket is not its own."""
    daemon.launch()
    status = daemon.wait_exit()
    raise Unreachable(f"it ended with {status}")


def test_the_lock_goes_with_a_killed_holder(make_daemon: MakeDaemon, model: Model) -> None:
    first, second = make_daemon(), make_daemon()
    first.start()
    first.kill()
    second.start()
    assert second.ask("anna", "hello")


@pytest.mark.parametrize("harm", ["newer", "damaged", "empty", "another program's"])
def test_a_file_that_cannot_be_used_is_refused_and_kept(
    make_daemon: MakeDaemon, model: Model, harm: str
) -> None:
    """Byte for byte, with one line that says what to do."""
    daemon = make_daemon()
    daemon.start()
    daemon.ask("anna", "hello")
    assert daemon.terminate() == 0
    file = daemon.home / "state.db"
    if harm == "newer":
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA user_version = 9999")
            connection.execute("PRAGMA journal_mode = DELETE")
    elif harm == "damaged":
        file.write_bytes(b"\0" * 512 + file.read_bytes()[512:])
    elif harm == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE somebody (id INTEGER)")
    before = file.read_bytes()
    said = len(daemon.log())
    with pytest.raises(Unreachable):
        daemon.start()
    assert daemon.exit_status == 65
    assert file.read_bytes() == before
    last = daemon.log()[said:].strip().splitlines()[-1]
    assert last.startswith("teaagentd: ")
    assert str(file) in last
    assert "Traceback" not in daemon.log()


def test_a_home_that_cannot_be_written_is_refused(make_daemon: MakeDaemon, model: Model) -> None:
    """The folder and its file are read-only, as on a disk that fell back to that."""
    daemon = make_daemon(before=NO_ROOT_OVERRIDE)
    daemon.start()
    daemon.ask("anna", "hello")
    assert daemon.terminate() == 0
    files = [*daemon.home.rglob("*"), daemon.home]
    modes = {file: file.stat().st_mode for file in files}
    for file in files:
        file.chmod(0o500 if file.is_dir() else 0o400)
    before = (daemon.home / "state.db").read_bytes()
    with pytest.raises(Unreachable):
        daemon.start()
    assert daemon.exit_status == 74
    assert (daemon.home / "state.db").read_bytes() == before
    assert "read-only" in daemon.log().splitlines()[-1] or "writable" in daemon.log()
    assert "Traceback" not in daemon.log()
    for file in files:
        file.chmod(modes[file])
    daemon.start()
    assert daemon.ask("anna", "again")


def test_a_full_disk_refuses_messages_and_loses_none(make_daemon: MakeDaemon, model: Model) -> None:
    """What was not kept is not acknowledged; with room again, all that was is answered once."""
    daemon = make_daemon(before=FULL_DISK)
    daemon.start()
    kept: list[int] = []
    refused = 0
    for number in range(60):
        answer = daemon.offer(f"chat{number}", "x" * 4000)
        if answer.status == 202:
            kept.append(answer.json["id"])
        else:
            is_problem(answer, 503)
            assert "disk" in answer.json["detail"]
            refused += 1
        if refused == 5:
            break
    assert kept
    assert refused
    daemon.kill()
    assert daemon.query("PRAGMA integrity_check") == [("ok",)]
    roomy = make_daemon()
    roomy.start()
    for number, message in enumerate(kept):
        roomy.answer(f"api:chat{number}", message)
    assert [row[0] for row in roomy.query("SELECT id FROM inbox ORDER BY id")] == kept
