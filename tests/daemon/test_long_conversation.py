"""Conversations that outgrow the model's window, with the real daemon and a strict server."""

from __future__ import annotations

from typing import Any

from tests.daemon.conftest import MakeDaemon, Model, said

WORDS = "word " * 200
TOO_LONG = {
    "status": 400,
    "body": {
        "error": {
            "code": "context_length_exceeded",
            "message": "This model's maximum context length is 2500 tokens.",
        }
    },
}


def begins_with_summary(body: dict[str, Any]) -> bool:
    return str(body["messages"][1]["content"]).startswith("[this program's summary")


def test_it_goes_on_for_ever_and_after_a_restart(make_daemon: MakeDaemon, model: Model) -> None:
    daemon = make_daemon({"TEAAGENTD_PROVIDER__CONTEXT_WINDOW": "4000"})
    daemon.start()
    for number in range(12):
        assert daemon.ask("anna", f"{number} {WORDS} [[say:ok]]") == "ok"
    daemon.kill()
    daemon.start()
    assert daemon.ask("anna", "and now? [[say:fine]]") == "fine"
    assert begins_with_summary(model.requests[-1])
    assert not any(one.startswith("0 word") for one in said(model.requests[-1], "user"))
    messages = daemon.session("api:anna")["messages"]
    assert len([one for one in messages if one["role"] == "user"]) == 13
    longest = max(len(str(body["messages"])) for body in model.requests)
    assert longest < 4 * 4000, "the server counts four characters as a token"


def test_a_window_that_nobody_knew_is_learnt_from_the_server(
    make_daemon: MakeDaemon, model: Model
) -> None:
    """The turn that was refused is answered all the same, once."""
    daemon = make_daemon({})
    daemon.start()
    for number in range(4):
        daemon.ask("anna", f"{number} {WORDS} [[say:ok]]")
    model.script([{"match": "refused once", **TOO_LONG}])
    assert daemon.ask("anna", "refused once [[say:here]]") == "here"
    assert begins_with_summary(model.requests[-1])
    texts = [one for one in daemon.all_replies("api:anna") if one["kind"] != "notice"]
    assert len(texts) == 5


def test_what_cannot_be_made_to_fit_is_told_and_not_tried_for_ever(
    make_daemon: MakeDaemon, model: Model
) -> None:
    daemon = make_daemon({})
    daemon.start()
    daemon.ask("anna", "hello")
    before = len(model.requests)
    model.script([{"times": 0, **TOO_LONG}])
    assert "/new" in daemon.ask("anna", "go on")
    assert len(model.requests) - before < 8
