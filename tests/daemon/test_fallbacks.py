"""Who answers when the first provider does not: behind the real daemon, over real sockets.

Faults of this kind: NousResearch/hermes-agent#104386, openclaw/openclaw#45663, #99097.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.commands import command
from tests.daemon.conftest import Effects, MakeDaemon, Model
from tests.daemon_process import DaemonProcess
from tests.strict_server import ServerProcess


@pytest.fixture
def first() -> Iterator[ServerProcess]:
    """The provider that is asked first; `model` is the one that stands in."""
    with ServerProcess() as server:
        yield server
        assert [one["refused"] for one in server.requests if one["refused"]] == []


@pytest.fixture
def daemon(make_daemon: MakeDaemon, first: ServerProcess, model: Model) -> DaemonProcess:
    """The two speak different dialects, and the first has two keys."""
    daemon = make_daemon(
        {
            "TEAAGENTD_PROVIDER__BASE_URL": first.url,
            "TEAAGENTD_PROVIDER__API_KEY": "sk-first-key",
            "TEAAGENTD_PROVIDER__API_KEYS": '["sk-second-key"]',
            "TEAAGENTD_PROVIDER__FALLBACKS": '["claude"]',
            "TEAAGENTD_PROVIDERS__CLAUDE__TYPE": "anthropic",
            "TEAAGENTD_PROVIDERS__CLAUDE__MODEL": "claude-x",
            "TEAAGENTD_PROVIDERS__CLAUDE__BASE_URL": model.url,
            "TEAAGENTD_PROVIDERS__CLAUDE__API_KEY": "sk-spare-key",
        }
    )
    daemon.start()
    return daemon


NO_CREDIT = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}


def rests(daemon: DaemonProcess) -> dict[str, bool]:
    return {one["name"]: one["rests_s"] is not None for one in daemon.status()["providers"]}


def test_each_key_and_then_the_other_provider_is_asked_and_the_rest_is_shared(
    daemon: DaemonProcess, first: ServerProcess, model: Model
) -> None:
    first.script([{"status": 429, "body": NO_CREDIT, "times": 0}])
    assert "hello" in daemon.ask("anna", "hello")
    assert len(first.requests) == 2
    assert rests(daemon) == {"openai, key 1": True, "openai, key 2": True, "claude": False}
    assert daemon.status()["provider"] == {"name": "claude", "model": "claude-x"}
    assert "and you" in daemon.ask("bert", "and you")
    assert len(first.requests) == 2
    assert len(model.requests) == 2
    shown = command("status", home=daemon.home).out
    assert "rests" in shown
    assert "quota" in shown
    assert "sk-" not in shown
    assert "sk-" not in json.dumps(daemon.status())
    assert "sk-" not in daemon.log()


def test_a_turn_goes_on_with_the_other_provider_in_the_middle_of_its_round(
    daemon: DaemonProcess, first: ServerProcess, model: Model, effects: Effects
) -> None:
    """What the first one called and thought is sent to the second as that one takes it, and its
    own to the first when that is back."""
    call = {"id": "call:0", "name": "count", "arguments": {"token": "a"}}
    away = {"status": 503, "headers": {"Retry-After": "1"}, "body": {"error": {"message": "busy"}}}
    first.script([{"reasoning": "Let me count.", "calls": [call]}, away, "Once."])
    daemon.ask("anna", "count a")
    assert effects.tokens() == ["a"]
    assert len(model.requests) == 1
    daemon.kill()
    daemon.start()
    assert daemon.ask("anna", "how often?") == "Once."
    assert effects.tokens() == ["a"]


def test_the_books_say_who_answered(
    daemon: DaemonProcess, first: ServerProcess, model: Model
) -> None:
    first.script([{"events": [{"choices": [{"delta": {"content": "Half an"}}]}], "cut": 1}])
    message = daemon.post("anna", "hello")
    answer = daemon.answer("api:anna", message)
    assert "Half an" not in answer["content"]
    turn = daemon.call("GET", f"/v1/turns/{answer['turn_id']}").json
    assert turn["requests"] == 2


def test_thinking_goes_back_to_the_server_that_demands_it_and_to_no_other(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """NousResearch/hermes-agent#15353, HKUDS/nanobot#3453, ongridio/ongrid#400."""
    with ServerProcess(wants_reasoning=True) as first:
        daemon = make_daemon(
            {
                "TEAAGENTD_PROVIDER__BASE_URL": first.url,
                "TEAAGENTD_PROVIDER__FALLBACKS": '["spare"]',
                "TEAAGENTD_PROVIDERS__SPARE__TYPE": "openai",
                "TEAAGENTD_PROVIDERS__SPARE__MODEL": "m",
                "TEAAGENTD_PROVIDERS__SPARE__BASE_URL": model.url,
            }
        )
        daemon.start()
        first.script(
            [
                {"reasoning": "One, \n🍵", "calls": [counting("a")]},
                {"reasoning": "", "calls": [counting("b")]},
                {"text": "Twice."},
                {"text": "Two."},
                {"status": 402, "body": NO_CREDIT},
            ]
        )
        assert daemon.ask("anna", "count twice") == "Twice."
        daemon.kill()
        daemon.start()
        assert daemon.ask("anna", "how often?") == "Two."
        daemon.ask("anna", "and now?")
        assert replayed(first.requests[-1]["body"]) == ["One, \n🍵", ""]
    assert effects.tokens() == ["a", "b"]
    [asked] = model.requests
    assert replayed(asked) == [None, None]
    assert [m["content"] for m in asked["messages"] if m["role"] == "assistant"][2:] == [
        "Twice.",
        "Two.",
    ]


def counting(token: str) -> dict[str, object]:
    return {"id": "t:0", "name": "count", "arguments": {"token": token}}


def replayed(body: dict[str, Any]) -> list[str | None]:
    return [m.get("reasoning_content") for m in body["messages"] if m.get("tool_calls")]
