"""The service unit and the tested set of versions."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from teaagentd.cli import exits
from teaagentd.config import ShutdownSection

DEPLOY = Path(__file__).parent.parent / "deploy"
LAST_SENDS_S = 10


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation has it
    unit.read(DEPLOY / "teaagentd.service")
    return unit["Service"]


def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "teaagentd.service").read_text()
    unit = tmp_path / "teaagentd.service"
    unit.write_text(text.replace("/opt/teaagentd/.venv/bin/teaagentd", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_the_unit_for_a_user_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "teaagentd-user.service").read_text()
    unit = tmp_path / "teaagentd.service"
    program = "%h/.local/share/teaagentd/.venv/bin/teaagentd"
    assert program in text
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_it_is_hardened(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(DEPLOY / "teaagentd.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for teaagentd\.service: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < 2.5


def test_what_a_restart_does_not_mend_is_not_restarted(
    service: configparser.SectionProxy,
) -> None:
    codes = set(map(int, service["RestartPreventExitStatus"].split()))
    assert codes == {exits.DAMAGED, exits.CONFIG}
    assert int(service["SuccessExitStatus"]) == exits.FORCED
    assert service["Type"] == "notify"


def test_the_drain_has_time_to_end(service: configparser.SectionProxy) -> None:
    assert int(service["TimeoutStopSec"]) > ShutdownSection().drain_timeout_s + LAST_SENDS_S


def test_the_versions_are_exact_and_have_no_address() -> None:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+]+", pin) for pin in pins)
    names = [pin.partition("==")[0].lower() for pin in pins]
    assert len(names) == len(set(names))
