"""`synchronous = FULL`: what is answered is on the disk, counted in system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teaagentd.store import opening
from tests.store.closed import ROOT

SYNCS = ("fsync(", "fdatasync(")


def count_syncs(folder: Path, commits: int) -> int:
    folder.mkdir()
    trace = folder / "trace"
    assert shutil.which("strace"), "strace counts the syncs: install it (apt-get install strace)"
    traced = [sys.executable, "-m", "tests.store.syncs", str(folder / "state.db"), str(commits)]
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace), *traced],
        cwd=ROOT,
        check=True,
        timeout=50,
    )
    lines = trace.read_text().splitlines()
    return sum(1 for line in lines if any(call in line for call in SYNCS) and "resumed" not in line)


def test_each_commit_is_synced_before_it_is_answered(tmp_path: Path) -> None:
    few, many = (count_syncs(tmp_path / str(commits), commits) for commits in (5, 25))
    assert many - few >= 20


def test_the_pragma_that_does_it_is_the_one_that_is_set() -> None:
    assert opening._PRAGMAS[0] == "synchronous = FULL"


pytestmark = pytest.mark.timeout(120)
