"""The figures: each is measured on the real daemon and, where that means something, beside a bare
call of the same size, alternating, the median of all rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import orjson

from tests.bench import plugin
from tests.bench.processes import Memory, cpu_s, fine_cpu_s, memory
from tests.daemon_process import ROOT, Box, DaemonProcess, plugin_folder
from tests.strict_server import ServerProcess

LIBRARIES = (
    "anyio click httpcore2 httptools httpx2 openai openai.resources.chat.completions orjson "
    "pydantic pydantic_settings sqlite3 stamina starlette.applications starlette.routing structlog "
    "tomllib uvicorn uvicorn.protocols.http.httptools_impl yaml"
).split()
"""What the daemon imports of others to serve one turn; so does the process beside it."""
HISTORY = 200
CHARACTERS = 100
"""Of a message; of a long history's more, so that its requests come to 59 kB."""
LONG_CHARACTERS = 215
LATENCY_MS = 50


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 5
    turns: int = 100
    sessions: int = 200
    messages: int = 5
    idle_s: float = 30.0
    stored_sessions: int = 10_000
    stored_messages: int = 2_000_000


QUICK = Effort(
    rounds=1, turns=6, sessions=20, messages=2, idle_s=2.0,
    stored_sessions=20, stored_messages=2000,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. `ratio` is what the bound is about, where it is not `daemon`."""

    name: str
    unit: str
    daemon: float
    bare: float | None = None
    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None where there is no bound."""
        value = self.daemon if self.ratio is None else self.ratio
        if self.at_most is not None:
            return value <= self.at_most
        return None if self.at_least is None else value >= self.at_least


def run_json(module: str, *arguments: object) -> dict[str, Any]:
    """What a module of the benchmark prints, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def p95(values: list[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


# -- start, idle ------------------------------------------------------------------------


def starting(effort: Effort) -> Iterator[Figure]:
    """The overview's CPU; start to ready and to the first reply, beside a bare first call."""
    yield Figure(
        name="teaagentd --help, CPU",
        unit="s",
        daemon=median(_cpu_of("-m", "teaagentd", "--help") for _ in range(effort.rounds)),
        at_most=0.35,
    )
    rounds = [_start() for _ in range(effort.rounds)]
    for name, column, bound in (
        ("start to ready, CPU", "ready_cpu", 1.0),
        ("start to ready", "ready", None),
    ):
        value = median(one[column] for one in rounds)
        yield Figure(name=name, unit="s", daemon=value, at_most=bound)
    first = median(one["reply"] for one in rounds)
    bare = median(one["bare"] for one in rounds)
    yield Figure(name="start to first reply", unit="s", daemon=first, bare=bare, ratio=first / bare)


def _cpu_of(*arguments: str) -> float:
    """User and system seconds of a Python process that ends by itself."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime


def _start() -> dict[str, float]:
    with Box() as box, ServerProcess(lean=True) as server:
        daemon = DaemonProcess(box.home, provider=server.url)
        started = time.perf_counter()
        daemon.launch()
        with daemon:
            daemon.wait_ready(step_s=0.005)
            ready, ready_cpu = time.perf_counter() - started, cpu_s(daemon.pid)
            daemon.ask("first", "Hello.")
            reply = time.perf_counter() - started
        body = _body_file(box.root, {"model": "strict", "stream": True, "messages": []})
        started = time.perf_counter()
        run_json("tests.bench.bare", server.url, body, "--calls", 1, "--warm-up", 0)
        bare = time.perf_counter() - started
    return {"ready": ready, "ready_cpu": ready_cpu, "reply": reply, "bare": bare}


def idling(effort: Effort) -> Iterator[Figure]:
    """Memory and CPU of a daemon that has answered once and has nothing to do."""
    with Box() as box, ServerProcess(lean=True) as server, _only_libraries() as pid:
        reference = memory(pid)
        with DaemonProcess(box.home, provider=server.url) as daemon:
            daemon.start()
            daemon.ask("idle", "Hello.")
            time.sleep(min(effort.idle_s, 5.0))
            found = memory(daemon.pid)
            busy, started = fine_cpu_s(daemon.pid), time.perf_counter()
            time.sleep(effort.idle_s)
            window = time.perf_counter() - started
            share = 100 * (fine_cpu_s(daemon.pid) - busy) / window
    yield _memory_figure("RSS", found, reference, "rss")
    yield _memory_figure("USS", found, reference, "uss")
    yield Figure(name="idle CPU", unit="%", daemon=share, at_most=0.2, note=f"over {window:.0f} s")


def _memory_figure(name: str, found: Memory, reference: Memory, field_name: str) -> Figure:
    ours, theirs = getattr(found, field_name), getattr(reference, field_name)
    return Figure(
        name=f"idle memory, {name}",
        unit="MiB",
        daemon=ours,
        bare=theirs,
        ratio=ours - theirs,
        at_most=20,
        note="the bound is on the difference to the bare imports",
    )


@contextmanager
def _only_libraries() -> Iterator[int]:
    """A process that imports what the daemon imports of others, and sleeps."""
    code = f"import {', '.join(LIBRARIES)}\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


# -- turns ------------------------------------------------------------------------------


@dataclass(slots=True)
class Rounds:
    """The rounds of one kind of turn and of its bare call."""

    body_bytes: int
    turn_ms: list[float] = field(default_factory=list)
    bare_ms: list[float] = field(default_factory=list)
    latency: list[list[float]] = field(default_factory=list)
    bare_latency: list[list[float]] = field(default_factory=list)

    def figures(self, name: str) -> Iterator[Figure]:
        turn, bare = median(self.turn_ms), median(self.bare_ms)
        note = f"requests of {self.body_bytes / 1000:.0f} kB"
        yield Figure(
            name=f"CPU per turn, {name}",
            unit="ms",
            daemon=turn,
            bare=bare,
            ratio=turn / bare,
            at_most=3,
            note=note,
        )
        bare_p50 = median(median(one) for one in self.bare_latency)
        for label, measure, bound in (("p50", median, 3), ("p95", p95, 6)):
            added = median(measure(one) for one in self.latency) - bare_p50
            yield Figure(
                name=f"added latency {label}, {name}",
                unit="ms",
                daemon=added,
                bare=bare_p50,
                ratio=added / bare_p50,
                at_most=bound,
                note="beside the median of the bare call",
            )


def turns(effort: Effort) -> Iterator[Figure]:
    """CPU and added latency of a turn, with no history and with a long one."""
    empty = _empty_history(effort)
    yield from empty.figures("empty history")
    long = _long_history(effort)
    yield from long.figures(f"{HISTORY} messages")
    more = median(long.turn_ms) - median(empty.turn_ms)
    yield Figure(
        name=f"CPU that {HISTORY} messages and 25 tools add",
        unit="ms",
        daemon=more,
        bare=median(long.bare_ms) - median(empty.bare_ms),
        at_most=4,
        note="bare: what the SDK alone takes more",
    )
    yield from _throughput(effort, median(empty.turn_ms))


def _empty_history(effort: Effort) -> Rounds:
    """Each turn is the first of its session."""
    with Box() as box:
        body = _capture(box, {}, history=0)
        rounds = Rounds(body.stat().st_size)
        with (
            ServerProcess(lean=True) as server,
            DaemonProcess(box.root / "empty", provider=server.url) as daemon,
        ):
            daemon.start()
            load(daemon, sessions=10, prefix="warm")
            for number in range(effort.rounds):
                _round(rounds, server, daemon, body, effort.turns, prefix=f"e{number}")
    return rounds


def _long_history(effort: Effort) -> Rounds:
    """Each turn is one more of a session that has 200 messages: a few turns in each of several
    sessions, so that no history grows much."""
    with Box() as box:
        environ = {"TEAAGENTD_TOOLS__ENABLED": '["current_time","bench"]'}
        body = _capture(box, environ, history=HISTORY)
        rounds = Rounds(body.stat().st_size)
        sessions = max(effort.turns // 10, 1)
        with (
            ServerProcess(lean=True) as server,
            _with_tools(box, "long", server.url, environ) as daemon,
        ):
            daemon.start()
            for number in range(effort.rounds):
                prefix = f"l{number}"
                load(
                    daemon,
                    sessions=sessions,
                    messages=HISTORY // 2,
                    prefix=prefix,
                    characters=LONG_CHARACTERS,
                )
                _round(rounds, server, daemon, body, effort.turns, prefix=prefix, sessions=sessions)
    return rounds


def _round(
    rounds: Rounds,
    server: ServerProcess,
    daemon: DaemonProcess,
    body: Path,
    turns_in_all: int,
    *,
    prefix: str,
    sessions: int | None = None,
) -> None:
    """One round of turns, then as many bare calls."""
    count = sessions or turns_in_all
    before = cpu_s(daemon.pid)
    done = load(daemon, sessions=count, messages=turns_in_all // count, prefix=prefix)
    spent = cpu_s(daemon.pid) - before
    latencies = done["latencies_ms"]
    rounds.turn_ms.append(spent * 1000 / len(latencies))
    rounds.latency.append(latencies)
    bare = run_json("tests.bench.bare", server.url, body, "--calls", turns_in_all)
    rounds.bare_ms.append(bare["cpu_ms"])
    rounds.bare_latency.append(bare["latencies_ms"])


def _throughput(effort: Effort, turn_ms: float) -> Iterator[Figure]:
    """Many sessions at once against a model that takes its time."""
    rounds: list[tuple[float, float]] = []
    bare_rates: list[float] = []
    total = effort.sessions * effort.messages
    with Box() as box, ServerProcess(lean=True, latency_ms=LATENCY_MS) as server:
        body = _capture(box, {}, history=0)
        environ = {
            "TEAAGENTD_AGENT__MAX_CONCURRENT_TURNS": "200",
            "TEAAGENTD_BUS__MAX_PENDING": "1000",
        }
        with DaemonProcess(box.root / "many", provider=server.url, environ=environ) as daemon:
            daemon.start()
            load(daemon, sessions=10, prefix="warm")
            for number in range(effort.rounds):
                before = cpu_s(daemon.pid)
                done = load(
                    daemon,
                    sessions=effort.sessions,
                    messages=effort.messages,
                    at_once=effort.sessions,
                    prefix=f"t{number}",
                )
                spent = cpu_s(daemon.pid) - before
                rounds.append((total / done["elapsed_s"], spent * 1000 / total))
                bare = run_json(
                    "tests.bench.bare", server.url, body, "--calls", total,
                    "--at-once", effort.sessions,
                )  # fmt: skip
                bare_rates.append(total / bare["elapsed_s"])
            after = memory(daemon.pid)
    rate, loaded_ms = median(r for r, _ in rounds), median(ms for _, ms in rounds)
    note = f"{effort.sessions} sessions × {effort.messages} at {LATENCY_MS} ms"
    yield Figure(
        name="throughput",
        unit="turns/s",
        daemon=rate,
        bare=median(bare_rates),
        at_least=40,
        note=note,
    )
    yield Figure(
        name="throughput, share of what CPU per turn allows",
        unit="%",
        daemon=100 * rate * turn_ms / 1000,
        at_least=70,
        note=f"that is 1000 / {turn_ms:.1f} ms = {1000 / turn_ms:.0f} turns/s",
    )
    yield Figure(name="CPU per turn under that load", unit="ms", daemon=loaded_ms)
    yield Figure(name="memory after that load, RSS", unit="MiB", daemon=after.rss)


def load(
    daemon: DaemonProcess, *, characters: int = CHARACTERS, **options: object
) -> dict[str, Any]:
    """What tests.bench.load says after it has sent what `options` say."""
    arguments = [
        word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    return run_json("tests.bench.load", daemon.socket, "--characters", characters, *arguments)


def _with_tools(box: Box, home: str, provider: str, environ: Mapping[str, str]) -> DaemonProcess:
    path = plugin_folder(box.root / "plugin", plugin.POINTS)
    return DaemonProcess(box.root / home, provider=provider, environ=environ, path=[path])


def _capture(box: Box, environ: Mapping[str, str], *, history: int) -> Path:
    """The body of the request that a turn with `history` messages before it really sends: what
    the bare call then sends, too."""
    answer = "word " * 20
    with ServerProcess([{"text": answer, "times": 0}]) as server:
        with _with_tools(box, f"capture-{history}", server.url, environ) as daemon:
            daemon.start()
            load(
                daemon,
                messages=history // 2 + 1,
                prefix="capture",
                characters=LONG_CHARACTERS if history else CHARACTERS,
            )
        return _body_file(box.root, server.requests[-1]["body"])


def _body_file(folder: Path, body: Mapping[str, object]) -> Path:
    file = folder / f"body-{len(list(folder.iterdir()))}.json"
    file.write_bytes(orjson.dumps(body))
    return file
