"""`usage`: what models came to, beside a daemon and without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Done, command
from tests.daemon_process import DaemonProcess
from tests.strict_server import ServerProcess

USED = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}}
PRICES = {
    "TEAAGENTD_PROVIDER__INPUT_PRICE": "10",
    "TEAAGENTD_PROVIDER__OUTPUT_PRICE": "100",
    "TEAAGENTD_BUDGET__MONTH_CENTS": "50",
    "TEAAGENTD_AGENT__TIMEZONE": "Pacific/Apia",
}
Run = Callable[..., Done]


@pytest.fixture(params=["beside a daemon", "without one"])
def used(request: pytest.FixtureRequest, home: Path, server: ServerProcess) -> Iterator[Run]:
    """Two requests of 0.2 cents each and one that told no usage, in two conversations."""
    server.script([{**USED, "text": "a"}, {**USED, "text": "b"}, {"text": "c", "usage": None}])
    with DaemonProcess(home, provider=server.url, environ=PRICES) as daemon:
        daemon.start()
        daemon.ask("anna", "one")
        daemon.ask("anna", "two")
        daemon.ask("bert", "three")
        if request.param == "without one":
            daemon.kill()
        yield lambda *args: command("usage", *args, home=home, **PRICES)


def test_it_is_summed_up_by_what_is_asked_for(used: Run) -> None:
    by_session = json.loads(used("--by", "session", "--json").out)
    anna, bert = by_session["entries"]
    assert (anna["name"], anna["requests"], anna["cost_cents"]) == ("api:anna", 2, 0.4)
    assert (anna["input_tokens"], anna["output_tokens"], anna["estimated"]) == (200, 20, 0)
    assert (bert["name"], bert["estimated"]) == ("api:bert", 1)
    assert by_session["total"]["requests"] == 3
    for by, name in (("model", "openai / strict"), ("purpose", "turn")):
        [entry] = json.loads(used("--by", by, "--json").out)["entries"]
        assert (entry["name"], entry["requests"]) == (name, 3)
    [day] = json.loads(used("--json").out)["entries"]
    assert day["requests"] == 3
    [cap] = json.loads(used("--json").out)["caps"]
    assert (cap["name"], cap["limit"], cap["held"]) == ("budget.month_cents", 50, 0)
    assert cap["spent"] == pytest.approx(by_session["total"]["cost_cents"])


def test_people_read_a_table_with_estimates_marked(used: Run) -> None:
    done = used("--by", "session", "--days", "1")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["session", "requests", "read", "cached", "written", "cents"] in lines
    assert ["api:anna", "2", "200", "0", "20", "0.4"] in lines
    [bert] = [line for line in lines if line[:1] == ["api:bert"]]
    assert bert[-1].startswith("~")
    assert any(line[:2] == ["total", "3"] for line in lines)
    assert "budget.month_cents = 50: " in done.out
    assert "spent; begins anew" in done.out


def test_a_way_that_there_is_not_is_refused(home: Path, server: ServerProcess) -> None:
    assert command("usage", "--by", "week", home=home).code == 2
    assert command("usage", "--days", "0", home=home).code == 2
    assert command("usage", home=home).code == 1
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        assert command("usage", home=home).out.startswith("No model was asked since 20")
