"""Running `teaagentd` as a person does: a process, with a pipe or a keyboard."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyte

PATIENCE_S = 30.0
ROWS, COLUMNS = 40, 100
ROOT = Path(__file__).parent.parent.parent
PROGRAM = [sys.executable, "-m", "teaagentd"]


def environ(home: Path, **more: str) -> dict[str, str]:
    """The environment of a command: nothing of this machine's own keys and homes."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "HOME": str(home.parent),
        "PYTHONPATH": str(ROOT),
        "TEAAGENTD_HOME": str(home),
        "TERM": "xterm",
        **more,
    }


def provider(url: str) -> dict[str, str]:
    """The variables that make an OpenAI server at `url` the provider."""
    return {
        "TEAAGENTD_PROVIDER__TYPE": "openai",
        "TEAAGENTD_PROVIDER__BASE_URL": url,
        "TEAAGENTD_PROVIDER__API_KEY": "key-of-the-test",
        "TEAAGENTD_PROVIDER__MODEL": "strict",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str


def command(
    *args: str, home: Path, stdin: str = "", timeout_s: float = PATIENCE_S, **more: str
) -> Done:
    """Run a command to its end; `more` are variables."""
    done = subprocess.run(
        [*PROGRAM, *args],
        env=environ(home, **more),
        cwd=home.parent,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


@contextmanager
def running(*args: str, home: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command with pipes that goes on beside the test, and ends with it at the latest."""
    with subprocess.Popen(
        [*PROGRAM, *args],
        env=environ(home, **more),
        cwd=home.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


class _Screen(pyte.HistoryScreen):
    """A terminal's screen, which answers where its cursor is."""

    def __init__(self, columns: int, rows: int, answer: Callable[[bytes], object]) -> None:
        super().__init__(columns, rows, history=10_000, ratio=0.5)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data.encode())

    def shown(self) -> str:
        """What has scrolled away and what stands there now, a line to a line."""
        gone = ["".join(line[x].data for x in range(self.columns)) for line in self.history.top]
        return "\n".join(line.rstrip() for line in [*gone, *self.display])


class Keyboard:
    """A command in a terminal of its own, typed to and looked at."""

    def __init__(
        self, args: Sequence[str], *, home: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(home.parent)
            os.execve(PROGRAM[0], [*PROGRAM, *args], environ(home, **(variables or {})))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._screen = _Screen(COLUMNS, ROWS, lambda data: os.write(self._fd, data))
        self._stream = pyte.ByteStream(self._screen)
        self._status: int | None = None

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def enter(self, line: str) -> None:
        self.type(line + "\r")

    def press(self, key: str, *, until: str) -> None:
        """Press a key again and again until `until` can be seen: lines typed earlier are read
        beside the prompt, which does not wait for them."""
        deadline = time.monotonic() + PATIENCE_S
        while until not in self.shown:
            assert time.monotonic() < deadline, f"waited for {until!r}; seen:\n{self.shown}"
            self.type(key)
            self._read(time.monotonic() + 0.3)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    @property
    def shown(self) -> str:
        """All that can be seen, scrolling back."""
        return self._screen.shown()

    def wait_for(self, text: str, *, gone: bool = False, timeout_s: float = PATIENCE_S) -> str:
        """Look until `text` can be seen, or cannot any more; all that is seen then."""
        what = f"{text!r} (gone: {gone})"
        return self.wait_until(what, lambda: (text in self.shown) is not gone, timeout_s)

    def wait_until(self, what: str, seen: Callable[[], bool], timeout_s: float = PATIENCE_S) -> str:
        """Look until `seen` holds; all that is seen then."""
        deadline = time.monotonic() + timeout_s
        while not seen():
            if not self._read(deadline):
                raise AssertionError(f"waited for {what}; seen:\n{self.shown}")
        return self.shown

    def wait_exit(self, timeout_s: float = PATIENCE_S) -> int:
        """Look on to the end; the exit code."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        assert time.monotonic() < deadline, f"it did not end:\n{self.shown}"
        return self._reap()

    def _read(self, deadline: float) -> bool:
        """Take in what there is; False at the end of the output or of the time."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        return bool(data)

    def _reap(self) -> int:
        if self._status is None:
            _, status = os.waitpid(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def __enter__(self) -> Keyboard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()
        os.close(self._fd)
