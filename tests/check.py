"""Everything that must hold before a change is kept: `python -m tests.check`.

Runs the linter, the type checker, the import rules and the tests, suite by suite, prints how
long each took, and ends with one line that counts. Exit code 0 if all of it passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PYTHON = [sys.executable, "-m"]
TOOLS = {"strace": "strace", "systemd-analyze": "systemd", "curl": "curl"}
"""Programs that tests call, and the Debian package of each."""

APART = (
    "tests/crash",
    "tests/daemon",
    "tests/providers",
    "tests/simulation",
    "tests/bench",
    "tests/cli",
    "tests/test_readme.py",
)
"""Suites of their own: they run real daemons, or the real model. The rest is one suite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one suite came to."""

    name: str
    passed: int
    failed: int
    seconds: float


def main() -> int:
    os.chdir(ROOT)
    if missing := provide_tools():
        print(f"the tests call {', '.join(missing)}, which cannot be found; please install them")
        return 2
    outcomes = [
        check("ruff", [*PYTHON, "ruff", "check", "."]),
        check("format", [*PYTHON, "ruff", "format", "--check", "."]),
        check("mypy", [*PYTHON, "mypy"]),
        check("imports", [str(Path(sys.executable).with_name("lint-imports"))]),
    ]
    outcomes.append(tests("units", ["tests", *(f"--ignore={path}" for path in APART)]))
    outcomes += [tests(path, [path]) for path in APART if (ROOT / path).exists()]
    return report(outcomes)


def provide_tools() -> list[str]:
    """Install the programs that are missing where that can be done unasked; what is still."""
    missing = [name for name in TOOLS if not shutil.which(name)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(missing)}", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "check": False}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)  # type: ignore[call-overload]
        packages = [TOOLS[name] for name in missing]
        subprocess.run(["apt-get", "install", "-y", "-qq", *packages], **quiet)  # type: ignore[call-overload]
    return [name for name in TOOLS if not shutil.which(name)]


def check(name: str, command: Sequence[str]) -> Outcome:
    """One check that passes or fails as a whole."""
    start = time.monotonic()
    print(f"\n=== {name}", flush=True)
    failed = subprocess.run(command, check=False).returncode != 0
    seconds = time.monotonic() - start
    return Outcome(name=name, passed=int(not failed), failed=int(failed), seconds=seconds)


def tests(name: str, args: Sequence[str]) -> Outcome:
    """One suite of tests; one that could not run, or ran none, has failed."""
    start = time.monotonic()
    print(f"\n=== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "report.xml"
        command = [*PYTHON, "pytest", "-q", "--durations=5", f"--junitxml={report_file}", *args]
        status = subprocess.run(command, check=False).returncode
        passed, failed = counted(report_file)
    if status != 0 and failed == 0:
        failed = 1
    return Outcome(name=name, passed=passed, failed=failed, seconds=time.monotonic() - start)


def counted(report_file: Path) -> tuple[int, int]:
    """How many tests passed, and how many did not, from pytest's report."""
    if not report_file.exists():
        return 0, 1
    suites = ElementTree.parse(report_file).getroot().iter("testsuite")
    passed = failed = 0
    for suite in suites:
        bad = sum(int(suite.get(key, 0)) for key in ("failures", "errors", "skipped"))
        failed += bad
        passed += int(suite.get("tests", 0)) - bad
    return passed, failed


def report(outcomes: Sequence[Outcome]) -> int:
    print("\n=== time")
    for outcome in outcomes:
        bad = f", {outcome.failed} failed" if outcome.failed else ""
        print(f"{outcome.name:<22}{outcome.seconds:7.1f} s  {outcome.passed} passed{bad}")
    total = sum(outcome.seconds for outcome in outcomes)
    print(f"{'total':<22}{total:7.1f} s\n")
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
