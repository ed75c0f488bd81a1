"""What /proc says of a process: CPU time, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads, in seconds, by ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def fine_cpu_s(pid: int) -> float:
    """Time on a processor of the threads that live now, in seconds, by nanoseconds: for windows
    in which next to nothing happens and no thread ends."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB."""

    rss: float
    """All that is resident, shared libraries too."""
    uss: float
    """What is this process's alone."""


def memory(pid: int) -> Memory:
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0])
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Memory(sizes["Rss"] / 1024, private / 1024)
