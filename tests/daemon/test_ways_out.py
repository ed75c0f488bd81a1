"""Turns that end otherwise than with an answer, and tools that misbehave, in the real daemon."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from tests.daemon.conftest import Effects, MakeDaemon, Model, roles, said
from tests.daemon_process import DaemonProcess, until


def test_steering_in_the_last_iteration_is_answered_next(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """The turn says that it met its limit; the message starts the next one.
    (dp-archive/archive#176)"""
    daemon = make_daemon({"TEAAGENTD_AGENT__MAX_ITERATIONS": "2"})
    daemon.start()
    call = {"name": "count", "arguments": {"token": "a"}}
    hold = {"name": "hold", "arguments": {"name": "gate"}}
    model.script([{"calls": [call]}, {"calls": [hold]}])
    first = daemon.post("anna", "work")
    until("the second round is on", lambda: "hold gate" in effects.tokens() or _over(daemon, first))
    second = daemon.post("anna", "and this")
    effects.release("gate")
    told = daemon.answer("api:anna", first)
    answer = daemon.answer("api:anna", second)
    finals = [one for one in daemon.all_replies("api:anna") if one["kind"] != "notice"]
    assert [one["id"] for one in finals] == sorted({told["id"], answer["id"]})


def _over(daemon: DaemonProcess, message: int) -> bool:
    return any(message in one["message_ids"] for one in daemon.replies("api:anna"))


def test_steering_while_the_provider_fails_is_answered_next(
    daemon: DaemonProcess, model: Model
) -> None:
    """The failed turn says so; what came meanwhile is answered, once. (HKUDS/nanobot#3110)"""
    model.script([{"match": "first", "status": 400, "body": {"error": "no"}, "latency_ms": 1500}])
    first = daemon.post("anna", "first")
    model.wait_asked("first")
    second = daemon.post("anna", "second")
    failed, answer = daemon.answer("api:anna", first), daemon.answer("api:anna", second)
    assert failed["kind"] == answer["kind"] == "final"
    assert failed["turn_id"] != answer["turn_id"]
    assert answer["content"].endswith("second")


def test_steering_after_an_empty_answer_is_answered(daemon: DaemonProcess, model: Model) -> None:
    """(guanyilun/agent-sh#259)"""
    model.script([{"match": "first", "text": "", "times": 1, "latency_ms": 1500}])
    first = daemon.post("anna", "first")
    model.wait_asked("first")
    second = daemon.post("anna", "second")
    texts = {daemon.answer("api:anna", first)["id"], daemon.answer("api:anna", second)["id"]}
    finals = [one for one in daemon.all_replies("api:anna") if one["kind"] != "notice"]
    assert {one["id"] for one in finals} == texts
    assert all(one["content"].strip() for one in finals)


@pytest.mark.parametrize(
    "reply",
    [
        {"status": 401, "body": {"error": {"message": "wrong key sk-secret-of-the-test"}}},
        {"status": 400, "body": {"error": {"message": "no"}}},
        {"raw": "<html>not a model</html>", "content_type": "text/html"},
        {"text": "half an answer that is cut", "cut": 2},
    ],
    ids=["wrong key", "refused", "not a model", "cut off"],
)
def test_a_provider_that_fails_is_told_and_frees_the_key(
    make_daemon: MakeDaemon, model: Model, reply: dict[str, object]
) -> None:
    daemon = make_daemon({"TEAAGENTD_PROVIDER__API_KEY": "sk-secret-of-the-test"})
    daemon.start()
    model.script([{**reply, "match": "first", "times": 0}])
    answer = daemon.ask("anna", "first")
    assert answer
    assert "sk-secret-of-the-test" not in answer + daemon.log()
    assert daemon.status()["turns"] == []
    assert daemon.ask("anna", "second").endswith("second")
    assert roles(model.requests[-1])[:2] == ["system", "user"]


def test_a_broken_tool_hides_no_sibling(daemon: DaemonProcess, model: Model) -> None:
    """Each call has its result, the error as one; the turn goes on. (HKUDS/nanobot#3045)"""
    daemon.ask("anna", '[[tool:broken]] [[tool:count {"token": "b"}]]')
    results = said(model.requests[-1], "tool")
    assert len(results) == 2
    assert "on fire" in results[0]
    assert results[1] == "counted b"


def test_a_tool_that_never_returns_frees_its_turn(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """Though it swallows a cancellation: a timeout is its result, slot and key are free, and
    the queued messages are answered. (openclaw/openclaw#128851)"""
    daemon = make_daemon({"TEAAGENTD_AGENT__MAX_CONCURRENT_TURNS": "1"})
    daemon.start()
    first = daemon.post("anna", "[[tool:stubborn]]")
    effects.wait("stubborn")
    second = daemon.post("anna", "and this")
    other = daemon.post("bert", "me too")
    daemon.answer("api:anna", first)
    daemon.answer("api:anna", second)
    daemon.answer("api:bert", other)
    assert any("did not" in text or "time" in text for text in said(_after_call(model), "tool"))
    assert daemon.terminate() == 0


def _after_call(model: Model) -> dict[str, object]:
    return next(body for body in model.requests if "tool" in roles(body))


def test_a_turn_has_a_deadline(make_daemon: MakeDaemon, model: Model) -> None:
    """A provider that hangs for good: the turn says that its time is over, what waits is
    answered next. (The deadline leaves a slow machine the time to ask.)"""
    daemon = make_daemon({"TEAAGENTD_AGENT__TURN_TIMEOUT_S": "6"})
    daemon.start()
    first = daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    second = daemon.post("anna", "and now?")
    told, answer = daemon.answer("api:anna", first), daemon.answer("api:anna", second)
    assert told["turn_id"] != answer["turn_id"]
    assert "time" in told["content"]
    until("the request is given up", lambda: model.live == 0)


def test_the_same_call_again_and_again_is_ended(daemon: DaemonProcess, model: Model) -> None:
    call = {"name": "hold", "arguments": {}}
    model.script([{"calls": [call], "times": 0}])
    assert daemon.ask("anna", "hello")
    assert len(model.requests) < 20


def test_a_message_that_keeps_killing_the_daemon_is_set_aside(
    make_daemon: MakeDaemon, model: Model
) -> None:
    """After three attempts: its sender is told, it is listed as dead and can be retried; the
    other conversation is answered meanwhile."""
    daemon = make_daemon()
    model.script([{"match": "crasher", "hang": True, "times": 3}])
    daemon.start()
    crasher = daemon.post("anna", "crasher")
    for attempt in range(1, 4):
        model.wait_asked("crasher", attempt)
        daemon.kill()
        daemon.start()
    told = daemon.answer("api:anna", crasher)
    assert "kept" in told["content"]
    assert daemon.ask("bert", "hello").endswith("hello")
    [dead] = daemon.call("GET", "/v1/inbox/dead").json["messages"]
    assert (dead["id"], dead["content"]) == (crasher, "crasher")
    assert daemon.status()["dead_rows"] == 1
    retried = daemon.call("POST", f"/v1/inbox/{crasher}/retry")
    assert retried.status == 202
    assert daemon.answer("api:anna", retried.json["id"])["content"].endswith("crasher")
    assert daemon.status()["dead_rows"] == 0


def test_a_store_that_cannot_begin_a_turn_is_tried_again_with_pauses(
    daemon: DaemonProcess, model: Model
) -> None:
    """Whatever it raises: no turn after turn is begun at full speed, and what waits is answered
    once it works again."""
    daemon.ask("anna", "hello")
    _rename(daemon, "messages", "away")
    waiting = daemon.post("anna", "second")
    until("it is logged", lambda: "turn_not_begun" in daemon.log())
    assert daemon.ask("bert", "/help")
    time.sleep(1)
    assert daemon.log().count("no such table") < 10
    _rename(daemon, "away", "messages")
    assert daemon.answer("api:anna", waiting)["content"].endswith("second")


def _rename(daemon: DaemonProcess, table: str, name: str) -> None:
    with closing(sqlite3.connect(daemon.home / "state.db", timeout=10)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute(f"ALTER TABLE {table} RENAME TO {name}")
