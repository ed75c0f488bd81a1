"""`/model` and `models use`: another configured model is asked first, here or everywhere."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import command
from tests.daemon.conftest import MakeDaemon, Model
from tests.daemon_process import DaemonProcess


@pytest.fixture
def daemon(make_daemon: MakeDaemon, model: Model) -> DaemonProcess:
    """Three models at one server: the first, its fallback, and one that is asked on request."""
    environ = {"TEAAGENTD_PROVIDER__FALLBACKS": '["spare"]'}
    for name in ("spare", "large"):
        environ |= {
            f"TEAAGENTD_PROVIDERS__{name.upper()}__TYPE": "openai",
            f"TEAAGENTD_PROVIDERS__{name.upper()}__MODEL": f"{name}-1",
            f"TEAAGENTD_PROVIDERS__{name.upper()}__BASE_URL": model.url,
        }
    daemon = make_daemon(environ)
    daemon.start()
    return daemon


def asked(model: Model) -> list[str]:
    return [body["model"] for body in model.requests]


def test_it_is_chosen_for_one_conversation_and_outlasts_a_kill(
    daemon: DaemonProcess, model: Model
) -> None:
    told = daemon.ask("anna", "/model large")
    assert told == (
        "I ask large (large-1) in this conversation from the next turn on. When it does not "
        "answer, I ask openai (strict), then spare (spare-1)."
    )
    daemon.ask("anna", "one")
    daemon.ask("bert", "two")
    daemon.kill()
    daemon.start()
    daemon.ask("anna", "three")
    daemon.ask("anna", "/new")
    daemon.ask("anna", "four")
    assert asked(model) == ["large-1", "strict", "large-1", "large-1"]
    assert daemon.ask("anna", "/model default").startswith("As configured, I ask openai (strict)")
    daemon.ask("anna", "five")
    assert asked(model)[-1] == "strict"


def test_the_others_stand_in_for_the_chosen_one(daemon: DaemonProcess, model: Model) -> None:
    daemon.ask("anna", "/model large")
    model.script([{"status": 402, "body": {"error": {"message": "no credit"}}, "times": 2}])
    assert daemon.ask("anna", "hello")
    assert asked(model) == ["large-1", "strict", "spare-1"]


def test_it_is_chosen_for_all(daemon: DaemonProcess, model: Model) -> None:
    daemon.ask("bert", "/model large")
    assert "in every conversation" in daemon.ask("anna", "/model spare all")
    daemon.ask("anna", "one")
    daemon.ask("bert", "two")
    assert asked(model) == ["spare-1", "spare-1"]


def test_it_is_listed_and_a_wrong_name_changes_nothing(daemon: DaemonProcess, model: Model) -> None:
    lines = daemon.ask("anna", "/model").splitlines()
    assert lines[:3] == [
        "* openai: strict",
        "  spare: spare-1",
        "  large: large-1, only where it is chosen",
    ]
    told = daemon.ask("anna", "/model huge")
    assert told == (
        "There is no model 'huge' in the configuration; there is openai, spare, large, default. "
        "Nothing has changed."
    )
    assert "did not understand" in daemon.ask("anna", "/model large for me")
    daemon.ask("anna", "hello")
    assert asked(model) == ["strict"]


@pytest.mark.parametrize("running", [True, False])
def test_the_command_line_does_the_same_with_a_daemon_and_without(
    daemon: DaemonProcess, model: Model, running: bool
) -> None:
    daemon.ask("anna", "hello")
    if not running:
        daemon.kill()

    def run(*args: str) -> str:
        given = {
            name: value for name, value in daemon.environ().items() if name.startswith("TEAAGENTD")
        }
        done = command("models", *args, home=daemon.home, **given)
        assert done.code == 0, done.err
        return done.out

    assert run("use", "large").startswith("I ask large (large-1) in every conversation")
    assert "in this conversation" in run("use", "spare", "--session", "anna")
    marked = [line for line in run("list").splitlines() if line.startswith("*")]
    assert marked == ["* large  large-1  asked only where it is chosen"]
    entries = json.loads(run("list", "--session", "anna", "--json"))
    assert [(one["name"], one["chosen"]) for one in entries] == [
        ("openai", False),
        ("spare", True),
        ("large", False),
    ]
    done = command("models", "use", "huge", home=daemon.home)
    assert done.code == 1
    if not running:
        daemon.start()
    daemon.ask("anna", "here")
    daemon.ask("bert", "there")
    assert asked(model)[1:] == ["spare-1", "large-1"]


def test_a_choice_that_is_no_longer_configured_is_no_hindrance(
    daemon: DaemonProcess, model: Model, make_daemon: MakeDaemon
) -> None:
    daemon.ask("anna", "/model large all")
    daemon.kill()
    again = make_daemon()
    again.start()
    assert again.ask("anna", "hello")
    assert asked(model) == ["strict"]
