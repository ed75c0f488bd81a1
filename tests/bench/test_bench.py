"""The benchmark works: a short run has every figure. What it measures fails nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.daemon_process import ROOT

NAMES = (
    "teaagentd --help, CPU",
    "start to ready, CPU",
    "start to ready",
    "start to first reply",
    "idle memory, RSS",
    "idle memory, USS",
    "idle CPU",
    "CPU per turn, empty history",
    "added latency p50, empty history",
    "added latency p95, empty history",
    "CPU per turn, 200 messages",
    "added latency p50, 200 messages",
    "added latency p95, 200 messages",
    "CPU that 200 messages and 25 tools add",
    "throughput",
    "throughput, share of what CPU per turn allows",
    "CPU per turn under that load",
    "memory after that load, RSS",
    "CPU per turn after months",
    "start to ready after months, CPU",
    "memory that 1,000 messages to one busy session take",
)


@pytest.mark.timeout(240)
def test_a_quick_run_has_every_figure() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=230,
    )
    figures = json.loads(done.stdout)["figures"]
    assert tuple(figure["name"] for figure in figures) == NAMES
    bounded = [figure for figure in figures if figure["holds"] is not None]
    assert len(bounded) == 17
    assert all(isinstance(figure["daemon"], float) for figure in figures)
