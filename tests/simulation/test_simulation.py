"""Lives of the daemon on virtual time: 3,000 that are the same each time, and with
`TEAAGENTD_SOAK=1` new ones until it is stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from teaagentd.store.commits import COMMITS
from tests.simulation import schedule
from tests.simulation.breaks import BREAKS
from tests.simulation.run import AGAIN

ROOT = Path(__file__).parent.parent.parent
LIVES = 3000
SOAK = os.environ.get("TEAAGENTD_SOAK") == "1"
PROGRAM = [sys.executable, "-m", "tests.simulation"]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=1200, check=False
    )


def figures(*arguments: str) -> dict[str, Any]:
    done = simulate(*arguments)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(0 if SOAK else 900)
def test_what_must_hold_holds_in_every_life(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures("--first", "0", "--count", str(LIVES))
    assert not found["failed"], found["failed"]
    with capsys.disabled():
        print(
            f"\n{found['lives']} lives, {found['messages']} messages, "
            f"{found['requests']} requests, {found['commits']} commits "
        )
    seen = set(found["seen"])
    assert found["lives"] == LIVES
    assert seen >= schedule.KINDS
    played = [name for name in COMMITS if name not in schedule.NOT_PLAYED]
    assert not {f"crash {side} {name}" for name in played for side in ("before", "after")} - seen
    if SOAK:
        with capsys.disabled():
            done = subprocess.run(PROGRAM, cwd=ROOT, check=False)
        assert done.returncode == 0, "see above"


def test_a_life_is_the_same_each_time() -> None:
    first, again = simulate("--seed", "12"), simulate("--seed", "12")
    assert first.returncode == 0
    assert first.stdout == again.stdout
    assert first.stdout.count("\n") > 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_fault_is_found_shrunk_and_shown_again(name: str) -> None:
    found = figures("--broken", name, "--first", "0", "--count", "400")
    assert found["failed"]
    command = re.search(rf"^{AGAIN} --seed (\d+) --actions ([\d,]+)$", found["failed"], re.M)
    assert command is not None
    seed, actions = command.groups()
    assert len(actions.split(",")) < len(schedule.make(seed))
    shown = simulate("--broken", name, "--seed", seed, "--actions", actions)
    assert shown.returncode == 1
    assert "WRONG: " in shown.stdout
