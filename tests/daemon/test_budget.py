"""Caps on spending behind the real daemon: before every request, for all at once, over kills.

Faults of this kind: use-agent-os/agent-os#363, scotthawes/multica#23, zeroclaw-labs/zeroclaw#10635.
"""

from __future__ import annotations

import signal

import pytest

from tests.cli.commands import command
from tests.daemon.conftest import Effects, MakeDaemon, Model, roles
from tests.daemon_process import DaemonProcess, until

THIRTY = {"usage": {"prompt_tokens": 10, "completion_tokens": 30}}
A_CENT_A_TOKEN = {
    "TEAAGENTD_PROVIDER__INPUT_PRICE": "0",
    "TEAAGENTD_PROVIDER__OUTPUT_PRICE": "10000",
    "TEAAGENTD_PROVIDER__MAX_OUTPUT_TOKENS": "30",
}


@pytest.fixture
def dear(make_daemon: MakeDaemon, model: Model) -> DaemonProcess:
    """Each request costs 30 cents, and a day may cost 100."""
    model.script([{**THIRTY, "text": "Yes.", "times": 0}])
    daemon = make_daemon({**A_CENT_A_TOKEN, "TEAAGENTD_BUDGET__DAY_CENTS": "100"})
    daemon.start()
    return daemon


def spent(daemon: DaemonProcess) -> float:
    [cap] = daemon.status()["spending"]
    cents: float = cap["spent"]
    return cents


def budget_alerts(daemon: DaemonProcess) -> list[str]:
    return [one["text"] for one in daemon.status()["alerts"] if one["kind"] == "budget"]


def test_it_stops_at_the_cap_and_says_which_and_when_it_begins_anew(
    dear: DaemonProcess, model: Model
) -> None:
    for number in range(4):
        assert dear.ask("anna", f"hello {number}") == "Yes."
    assert spent(dear) == 120
    refusal = dear.ask("anna", "once more")
    assert "The cap budget.day_cents = 100 is reached: 120 cents spent" in refusal
    assert "It begins anew on " in refusal
    assert "Your message and what was done so far are kept." in refusal
    assert len(model.requests) == 4
    alerts = until("the owner is told", lambda: budget_alerts(dear))
    assert any(text.startswith("80% of the cap budget.day_cents (100 cents)") for text in alerts)
    assert any("is reached for today" in text for text in alerts)


def test_what_was_spent_outlasts_a_kill(dear: DaemonProcess, model: Model) -> None:
    for number in range(3):
        dear.ask("anna", f"hello {number}")
    dear.kill()
    dear.start()
    assert spent(dear) == 90
    dear.ask("anna", "within")
    assert "budget.day_cents" in dear.ask("bert", "beyond")
    assert len(model.requests) == 4


def test_a_request_that_a_kill_cut_off_counts_as_spent(dear: DaemonProcess, model: Model) -> None:
    model.script([{"match": "hang", "hang": True}, {**THIRTY, "text": "Yes.", "times": 0}])
    dear.post("anna", "hang")
    model.wait_asked("hang")
    [cap] = dear.status()["spending"]
    assert (cap["spent"], cap["held"]) == (0, 30)
    dear.kill()
    dear.start()
    until("it is answered", lambda: len(dear.all_replies("api:anna")) == 2)
    assert spent(dear) == 60
    [entry] = dear.call("GET", "/v1/usage?by=model").json["entries"]
    assert (entry["requests"], entry["estimated"], entry["cost_cents"]) == (2, 1, 60)


def test_conversations_at_once_pass_it_by_one_request_at_most(
    dear: DaemonProcess, model: Model
) -> None:
    model.script([{**THIRTY, "text": "Yes.", "latency_ms": 300, "times": 0}])
    asked = [(chat, dear.post(f"chat-{chat}", "hello")) for chat in range(8)]
    texts = [dear.answer(f"api:chat-{chat}", row)["content"] for chat, row in asked]
    assert len(model.requests) == 4
    assert texts.count("Yes.") == 4
    assert sum("budget.day_cents" in text for text in texts) == 4


def test_a_turn_of_many_rounds_ends_at_its_own_cap_with_legal_pairs(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    def call(number: int) -> dict[str, object]:
        return {"id": f"c{number}", "name": "count", "arguments": {"token": str(number)}}

    model.script([{**THIRTY, "calls": [call(number)]} for number in range(20)])
    daemon = make_daemon({**A_CENT_A_TOKEN, "TEAAGENTD_BUDGET__TURN_CENTS": "100"})
    daemon.start()
    told = daemon.ask("anna", "count to twenty")
    assert "The cap budget.turn_cents = 100 is reached: 120 cents spent for this turn." in told
    assert "your next message" in told
    assert effects.tokens() == ["0", "1", "2", "3"]
    model.script(["Done."])
    assert daemon.ask("anna", "go on") == "Done."
    assert roles(model.requests[-1]).count("tool") == 4


def test_commands_work_when_nothing_is_left(dear: DaemonProcess, model: Model) -> None:
    for number in range(5):
        dear.ask("anna", f"hello {number}")
    assert "Nothing is running" in dear.ask("anna", "/status")
    assert "Nothing is running" in dear.ask("anna", "/stop")
    assert "Today: 120 cents of 100" in dear.ask("anna", "/usage")
    assert command("status", home=dear.home).code == 0
    shown = command("usage", home=dear.home)
    assert "120" in shown.out
    assert "budget.day_cents = 100: 120 spent" in shown.out


def test_a_raised_cap_is_taken_up_and_counts_what_was_spent(
    make_daemon: MakeDaemon, model: Model
) -> None:
    model.script([{**THIRTY, "text": "Yes.", "times": 0}])
    daemon = make_daemon(A_CENT_A_TOKEN)
    daemon.start()
    config = daemon.home / "config.toml"

    def allow(cents: int) -> None:
        generation = daemon.status()["configuration"]["generation"]
        config.write_text(f"[budget]\nday_cents = {cents}\n", encoding="utf-8")
        daemon.signal(signal.SIGHUP)
        until(
            "it is taken up",
            lambda: daemon.status()["configuration"]["generation"] > generation,
        )

    assert daemon.ask("anna", "one") == "Yes."
    allow(30)
    assert "budget.day_cents" in daemon.ask("anna", "two")
    until("the owner is told", lambda: budget_alerts(daemon))
    allow(1000)
    assert daemon.ask("anna", "three") == "Yes."
    until("it is cleared", lambda: not budget_alerts(daemon))
    assert spent(daemon) == 60


def test_a_model_without_a_price_is_refused_under_a_cap_in_cents_unless_named(
    make_daemon: MakeDaemon, model: Model
) -> None:
    """The strict server's address is of this machine, where models cost nothing, unless their
    name says that they are only passed on."""
    capped = {"TEAAGENTD_BUDGET__MONTH_CENTS": "1000"}
    free = make_daemon(capped, home="free")
    free.start()
    assert free.ask("anna", "hello")
    assert spent(free) == 0
    free.kill()
    passed_on = make_daemon({**capped, "TEAAGENTD_PROVIDER__MODEL": "gpt-5-mini"}, home="passed")
    passed_on.start()
    assert passed_on.ask("anna", "hello")
    assert spent(passed_on) > 0


def test_when_the_cap_is_reached_a_model_of_this_machine_stands_in(
    make_daemon: MakeDaemon, model: Model
) -> None:
    model.script([{**THIRTY, "text": "Yes."}])
    daemon = make_daemon(
        {
            **A_CENT_A_TOKEN,
            "TEAAGENTD_BUDGET__DAY_CENTS": "30",
            "TEAAGENTD_PROVIDER__FALLBACKS": '["here"]',
            "TEAAGENTD_PROVIDERS__HERE__TYPE": "openai",
            "TEAAGENTD_PROVIDERS__HERE__MODEL": "qwen",
            "TEAAGENTD_PROVIDERS__HERE__BASE_URL": model.url,
        }
    )
    daemon.start()
    assert daemon.ask("anna", "hello") == "Yes."
    assert "echo" in daemon.ask("anna", "and now?")
    assert [body["model"] for body in model.requests] == ["strict", "qwen"]
    assert spent(daemon) == 30
