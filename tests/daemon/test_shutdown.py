"""How the real daemon ends, and what the next start makes of it."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from teaagentd.daemon import EXIT_FORCED
from tests.daemon.conftest import Effects, MakeDaemon, Model, said
from tests.daemon_process import DaemonProcess, until


def test_an_idle_daemon_ends_clean(daemon: DaemonProcess) -> None:
    daemon.ask("anna", "hello")
    assert daemon.terminate() == 0
    assert not daemon.socket.exists()


def test_the_first_signal_lets_what_was_begun_end(
    daemon: DaemonProcess, model: Model, effects: Effects
) -> None:
    """It says what it waits for; what is queued behind the turn is answered after the restart.
    (NousResearch/hermes-agent#107638)"""
    first = daemon.post("anna", 'first [[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    second = daemon.post("anna", "second")
    daemon.signal(signal.SIGTERM)
    until("it says what it waits for", lambda: "api:anna" in daemon.log())
    assert daemon.alive
    effects.release("gate")
    assert daemon.wait_exit() == 0
    daemon.start()
    assert daemon.answer("api:anna", first)["kind"] == "final"
    assert daemon.answer("api:anna", second)["content"].endswith("second")
    assert effects.tokens() == ["hold gate"]
    assert said(model.requests[-1], "tool") == ["held for gate"]


def test_a_turn_that_takes_too_long_goes_on_after_the_restart(
    make_daemon: MakeDaemon, model: Model
) -> None:
    """A planned end does not count as an attempt, however often it happens."""
    daemon = make_daemon({"TEAAGENTD_SHUTDOWN__DRAIN_TIMEOUT_S": "0.1"})
    model.script([{"match": "first", "hang": True, "times": 5}])
    daemon.start()
    first = daemon.post("anna", "first")
    for number in range(1, 6):
        model.wait_asked("first", number)
        assert daemon.terminate() == 0
        daemon.start()
    answer = daemon.answer("api:anna", first)
    assert answer["content"].endswith("first")
    turn = daemon.call("GET", f"/v1/turns/{answer['turn_id']}").json
    assert (turn["outcome"], turn["attempt"]) == ("answered", 1)


def test_the_second_signal_forces_the_end(daemon: DaemonProcess, model: Model) -> None:
    """With a status of its own, and a store that loads: the turn goes on."""
    model.script([{"match": "first", "hang": True}])
    first = daemon.post("anna", "first")
    model.wait_asked("first")
    daemon.signal(signal.SIGTERM)
    until("it drains", lambda: daemon.status()["draining"])
    daemon.signal(signal.SIGTERM)
    assert daemon.wait_exit() == EXIT_FORCED
    assert daemon.query("PRAGMA integrity_check") == [("ok",)]
    daemon.start()
    assert daemon.answer("api:anna", first)["content"].endswith("first")


def open_files(pid: int) -> set[str]:
    names = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(entry.readlink().name)
    return names


def test_a_signal_that_comes_while_it_starts_is_heeded(daemon: DaemonProcess) -> None:
    """Here while it waits for its file, which another program holds."""
    first = daemon.post("anna", "hello")
    daemon.answer("api:anna", first)
    daemon.terminate()
    with closing(sqlite3.connect(daemon.home / "state.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE held (a)")
        daemon.launch()
        until("it has come to its file", lambda: "state.db" in open_files(daemon.pid))
        daemon.signal(signal.SIGTERM)
        other.execute("ROLLBACK")
    assert daemon.wait_exit() == 0
    daemon.start()
    assert daemon.ask("anna", "again").endswith("again")


def test_a_reply_being_sent_is_delivered_before_the_end(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """The turn is over, the channel is slow: the drain waits for it."""
    daemon = make_daemon({"TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}'})
    daemon.start()
    daemon.post("bob", "[[say:HOLD this]]", channel="filebox")
    until("it is being sent", lambda: effects.notes("held"))
    daemon.signal(signal.SIGTERM)
    until("it says what it waits for", lambda: "filebox" in daemon.log())
    effects.release("send")
    assert daemon.wait_exit() == 0
    assert [one["content"] for one in effects.notes("sent")] == ["HOLD this"]
    daemon.start()
    until("it is quiet", lambda: daemon.status()["outbox"]["depth"] == 0)
    assert len(effects.notes("sent")) == 1


def test_a_part_of_unknown_outcome_is_repeated_once_and_marked(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """However many restarts follow; a chat behind it on the same channel is served.
    (openclaw/openclaw#29106)"""
    daemon = make_daemon({"TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}'})
    daemon.start()
    daemon.post("bob", "[[say:HOLD this]]", channel="filebox")
    for number in range(1, 3):
        until("it is being sent", lambda number=number: len(effects.notes("held")) == number)
        daemon.kill()
        daemon.start()
    daemon.post("bob", "[[say:after it]]", channel="filebox")
    until("the next is sent", lambda: effects.notes("sent"))
    assert [one["content"] for one in effects.notes("sent")] == ["after it"]
    assert [one["repeat"] for one in effects.notes("held")] == [False, True]
    assert daemon.status()["dead_letters"] == 1
    for _ in range(2):
        daemon.kill()
        daemon.start()
    assert daemon.ask("anna", "hello")
    assert len(effects.notes("held")) == 2


def test_a_refused_text_is_set_aside_and_delays_nobody(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """(HKUDS/nanobot#5457)"""
    daemon = make_daemon({"TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}'})
    daemon.start()
    daemon.post("carl", "[[say:REFUSE this]]", channel="filebox")
    daemon.post("bob", "[[say:HOLD this]]", channel="filebox")
    until("it is refused", lambda: daemon.status()["dead_letters"] == 1)
    daemon.post("dora", "[[say:hello]]", channel="filebox")
    until("it is sent", lambda: [one["chat"] for one in effects.notes("sent")] == ["dora"])
    daemon.kill()
    daemon.start()
    assert daemon.ask("anna", "hello")
    assert len(effects.notes("refused")) == 1


def test_the_first_signal_after_that_forces_nothing(daemon: DaemonProcess, model: Model) -> None:
    """As when `teaagentd stop` is followed by the service manager's own."""
    model.script([{"match": "first", "text": "done", "latency_ms": 1500}])
    first = daemon.post("anna", "first")
    model.wait_asked("first")
    assert daemon.call("POST", "/v1/shutdown", {}).status == 202
    daemon.signal(signal.SIGTERM)
    assert daemon.wait_exit() == 0
    daemon.start()
    assert daemon.answer("api:anna", first)["content"] == "done"
    turns = daemon.query("SELECT attempt, outcome FROM turns")
    assert turns == [(1, "answered")]


def test_it_can_be_told_to_end_over_its_socket(daemon: DaemonProcess) -> None:
    assert daemon.call("POST", "/v1/shutdown", {}).status == 202
    assert daemon.wait_exit() == 0


def test_a_draining_daemon_still_accepts_and_answers_later(
    daemon: DaemonProcess, model: Model, effects: Effects
) -> None:
    """What it acknowledges is kept."""
    daemon.post("anna", '[[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    daemon.signal(signal.SIGTERM)
    until("it drains", lambda: daemon.status()["draining"])
    late = daemon.offer("bert", "late")
    effects.release("gate")
    assert daemon.wait_exit() == 0
    daemon.start()
    if late.status == 202:
        assert daemon.answer("api:bert", late.json["id"])["content"].endswith("late")
    else:
        assert late.status == 503
