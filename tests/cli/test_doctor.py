"""`teaagentd doctor`: what is wrong is named with its mend, and nothing changes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from teaagentd.store import HomeLock
from tests.cli.commands import command, provider
from tests.daemon_process import DaemonProcess
from tests.strict_server import ServerProcess


def talked(home: Path, server: ServerProcess) -> None:
    assert command("ask", "hello", home=home, **provider(server.url)).code == 0


def examined(home: Path, **more: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the worst finding of each check."""
    done = command("doctor", "--json", home=home, **more)
    order = ("ok", "warning", "failure")
    worst: dict[str, dict[str, str]] = {}
    for finding in json.loads(done.out):
        before = worst.get(finding["check"])
        if before is None or order.index(finding["level"]) > order.index(before["level"]):
            worst[finding["check"]] = finding
    return done.code, worst


def levels(worst: dict[str, dict[str, str]]) -> dict[str, str]:
    return {check: finding["level"] for check, finding in worst.items()}


ALL = ("home", "configuration", "disk", "database", "clock", "daemon", "model")


@pytest.mark.parametrize("running", [True, False])
def test_a_sound_home_passes_beside_a_daemon_and_without(
    home: Path, server: ServerProcess, running: bool
) -> None:
    talked(home, server)
    if running:
        with DaemonProcess(home, provider=server.url) as daemon:
            daemon.start()
            code, worst = examined(home, **provider(server.url))
            assert f"process {daemon.pid} answers" in worst["daemon"]["found"]
    else:
        code, worst = examined(home, **provider(server.url))
        assert "none is running" in worst["daemon"]["found"]
    assert (code, levels(worst)) == (0, dict.fromkeys(ALL, "ok"))


def test_people_read_one_line_for_each_and_the_mend_below(
    home: Path, server: ServerProcess
) -> None:
    talked(home, server)
    home.chmod(0o755)
    done = command("doctor", home=home, **provider(server.url))
    lines = done.out.splitlines()
    at = lines.index(f"warning  home: others can open {home}")
    assert lines[at + 1].strip() == f"chmod go= {home}"
    assert done.code == 0


def test_a_home_that_is_not_there_is_not_made(home: Path) -> None:
    code, worst = examined(home)
    assert code == 1
    assert "teaagentd init" in worst["home"]["mend"]
    assert not home.exists()


def test_a_database_that_is_damaged_within_is_found_and_left(
    home: Path, server: ServerProcess
) -> None:
    """Where a start does not look."""
    talked(home, server)
    file = home / "state.db"
    content = bytearray(file.read_bytes())
    content[40000:44000] = b"?" * 4000
    file.write_bytes(content)
    code, worst = examined(home, **provider(server.url))
    assert code == 1
    assert "not sound" in worst["database"]["found"]
    assert "restore" in worst["database"]["mend"]
    assert file.read_bytes() == bytes(content)


def test_what_was_given_up_and_a_clock_that_was_set_back_are_told(
    home: Path, server: ServerProcess
) -> None:
    talked(home, server)
    with closing(sqlite3.connect(home / "state.db", isolation_level=None)) as state:
        state.execute("UPDATE inbox SET state = 'dead', accepted_at = accepted_at + 86400000")
        state.execute("UPDATE outbox SET state = 'dead'")
    code, worst = examined(home, **provider(server.url))
    assert code == 0
    assert [worst[check]["level"] for check in ("messages", "replies", "clock")] == ["warning"] * 3
    assert "in the future" in worst["clock"]["found"]


def test_a_holder_that_does_not_answer_is_a_failure(home: Path, server: ServerProcess) -> None:
    talked(home, server)
    with HomeLock(home):
        code, worst = examined(home, **provider(server.url))
    assert (code, worst["daemon"]["level"]) == (1, "failure")


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_configuration_and_the_model_are_tried(home: Path, kind: str) -> None:
    with ServerProcess(key="the-right-key") as server:
        talked_to = {**provider(server.url), "TEAAGENTD_PROVIDER__TYPE": kind}
        wrong = {**talked_to, "TEAAGENTD_PROVIDER__API_KEY": "a-wrong-key"}
        right = {**talked_to, "TEAAGENTD_PROVIDER__API_KEY": "the-right-key"}
        assert command("init", home=home, **right).code == 0
        assert levels(examined(home, **right)[1])["model"] == "ok"
        code, worst = examined(home, **wrong)
    assert (code, worst["model"]["mend"]) == (1, "set provider.api_key right")
    assert "a-wrong-key" not in str(worst)
    code, worst = examined(home, **{**right, "TEAAGENTD_PROVIDER__BASE_URL": "http://127.0.0.1:9"})
    assert (code, worst["model"]["level"]) == (1, "failure")
    code, worst = examined(home, TEAAGENTD_PROVIDER__TYPE="gpt")
    assert (code, worst["configuration"]["level"]) == (1, "failure")


def test_whoever_stands_in_and_every_key_is_tried(home: Path) -> None:
    with ServerProcess(key="the-right-key") as server:
        right = {
            **provider(server.url),
            "TEAAGENTD_PROVIDER__API_KEY": "the-right-key",
            "TEAAGENTD_PROVIDER__FALLBACKS": '["spare"]',
            "TEAAGENTD_PROVIDERS__SPARE__TYPE": "anthropic",
            "TEAAGENTD_PROVIDERS__SPARE__BASE_URL": server.url,
            "TEAAGENTD_PROVIDERS__SPARE__API_KEYS": '["the-right-key"]',
        }
        assert command("init", home=home, **right).code == 0
        assert levels(examined(home, **right)[1])["spare"] == "ok"
        further = '["the-right-key", "another-key"]'
        wrong = {**right, "TEAAGENTD_PROVIDERS__SPARE__API_KEYS": further}
        code, worst = examined(home, **wrong)
    assert (code, worst["model"]["level"]) == (1, "ok")
    assert worst["spare"]["mend"] == "set providers.spare.api_keys right"
    assert "another-key" not in str(worst)
