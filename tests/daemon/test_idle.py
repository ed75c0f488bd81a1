"""An idle daemon sleeps: nothing in it looks whether there is something to do."""

from __future__ import annotations

import time
from pathlib import Path

from tests.daemon_process import DaemonProcess


def test_an_idle_daemon_does_not_wake(daemon: DaemonProcess) -> None:
    daemon.ask("anna", "hello")
    time.sleep(2.5)  # the connection to the model is given up after two seconds
    before = _switches(daemon.pid)
    time.sleep(3)
    assert _switches(daemon.pid) - before <= 3


def _switches(pid: int) -> int:
    """How often any of its threads was put to work so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total
