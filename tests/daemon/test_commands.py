"""`/stop`, `/new` and their like, against the real daemon: outside the queue, and durable."""

from __future__ import annotations

from tests.daemon.conftest import Effects, MakeDaemon, Model, roles, said
from tests.daemon_process import DaemonProcess, until


def test_a_stop_frees_a_turn_whose_provider_hangs(daemon: DaemonProcess, model: Model) -> None:
    """The stop's reply answers what was asked; the request is given up, the key is free."""
    hanging = daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    stop = daemon.post("anna", "/stop")
    assert daemon.answer("api:anna", hanging) == daemon.answer("api:anna", stop)
    until("the request is given up", lambda: model.live == 0)
    assert daemon.ask("anna", "still there?").endswith("still there?")
    finals = [one for one in daemon.all_replies("api:anna") if one["kind"] == "final"]
    assert len(finals) == 2


def test_a_stop_works_while_the_inbox_is_full(make_daemon: MakeDaemon, model: Model) -> None:
    """And what waited behind the turn starts the next one. (juspay/olai#194)"""
    daemon = make_daemon({"TEAAGENTD_BUS__MAX_PENDING": "2"})
    daemon.start()
    hanging = daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    waiting = [daemon.post("anna", f"waiting {number}") for number in range(2)]
    assert daemon.offer("anna", "one too many").status == 429
    assert daemon.offer("bert", "one too many").status == 429
    stop = daemon.post("anna", "/stop")
    answer = daemon.answer("api:anna", stop)
    assert answer["message_ids"] == [hanging, stop]
    assert "2 messages" in answer["content"]
    next_answer = daemon.answer("api:anna", waiting[0])
    assert next_answer["message_ids"] == waiting
    assert next_answer["turn_id"] != answer["turn_id"]


def test_a_stop_over_the_api_needs_no_message(daemon: DaemonProcess, model: Model) -> None:
    hanging = daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    answer = daemon.stop_session("api:anna")
    assert answer.status == 200
    assert answer.json["stopped"]
    assert daemon.answer("api:anna", hanging)["kind"] == "final"
    assert not daemon.stop_session("api:anna").json["stopped"]


def test_a_stop_holds_after_a_kill(make_daemon: MakeDaemon, model: Model) -> None:
    daemon = make_daemon()
    daemon.start()
    daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    daemon.post("anna", "/stop")
    daemon.kill()
    daemon.start()
    assert daemon.status()["turns"] == []
    daemon.ask("anna", "hello")
    assert len(model.requests) == 2


def test_a_stop_keeps_what_was_done(daemon: DaemonProcess, model: Model, effects: Effects) -> None:
    """The next request holds the message, the finished result, and an interrupted one.
    (HKUDS/nanobot#2526)"""
    daemon.post("anna", '[[tool:count {"token": "a"}]] [[tool:hold {"name": "gate"}]] go')
    effects.wait("hold gate")
    until(
        "the first call is done",
        lambda: daemon.query("SELECT 1 FROM calls WHERE name = 'count' AND state = 'finished'"),
    )
    daemon.answer("api:anna", daemon.post("anna", "/stop"))
    daemon.ask("anna", "what did I ask?")
    last = model.requests[-1]
    assert roles(last) == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert said(last, "tool")[0] == "counted a"
    assert "interrupted" in said(last, "tool")[1]


def test_a_new_conversation_forgets_and_keeps(
    daemon: DaemonProcess, model: Model, effects: Effects
) -> None:
    """It closes the running turn; nothing of it is written any more, the transcript is kept.
    (HKUDS/nanobot#4104)"""
    first = daemon.post("anna", 'first [[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    new = daemon.post("anna", "/new")
    assert daemon.answer("api:anna", new)["message_ids"] == [first, new]
    effects.release("gate")
    daemon.ask("anna", "second")
    assert roles(model.requests[-1]) == ["system", "user"]
    shown = daemon.session("api:anna")["messages"]
    assert [one["content"] for one in shown if one["role"] == "user"][-1] == "second"
    assert not [one for one in shown if one["content"] == "held for gate"]


def test_a_redelivered_command_has_its_effect_once(daemon: DaemonProcess, model: Model) -> None:
    daemon.ask("anna", "one")
    first = daemon.offer("anna", "/new", external_id="n1")
    daemon.ask("anna", "two")
    again = daemon.offer("anna", "/new", external_id="n1")
    assert first.status == again.status == 202
    assert again.json == {**first.json, "duplicate": True}
    daemon.ask("anna", "three")
    assert len(said(model.requests[-1], "user")) == 2


def test_status_and_help_answer_while_a_turn_runs(daemon: DaemonProcess, model: Model) -> None:
    daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    assert "/stop" in daemon.ask("anna", "/help")
    assert "Working here" in daemon.ask("anna", "/status")
    [turn] = daemon.status()["turns"]
    assert turn["session_key"] == "api:anna"
    assert turn["phase"] == "thinking"


def test_a_stop_ends_what_waits_for_a_slot(make_daemon: MakeDaemon, model: Model) -> None:
    daemon = make_daemon({"TEAAGENTD_AGENT__MAX_CONCURRENT_TURNS": "1"})
    daemon.start()
    daemon.post("anna", "[[hang]]")
    model.wait_asked("[[hang]]")
    waiting = daemon.post("bert", "hello")
    until("it waits", lambda: len(daemon.status()["turns"]) == 2)
    stop = daemon.post("bert", "/stop")
    assert daemon.answer("api:bert", stop)["message_ids"] == [waiting, stop]
    daemon.post("anna", "/stop")
    assert daemon.ask("bert", "again").endswith("again")
    assert said(model.requests[-1], "user")[0].endswith("hello")
