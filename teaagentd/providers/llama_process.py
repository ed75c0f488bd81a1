"""One child process that serves a model, from its start to its end.

A thread of its own starts it, hears whether it is ready, and waits for its end; another drains
its standard error. So the event loop is never blocked, and a child is reaped whatever becomes
of the loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import anyio
import structlog

from teaagentd.abc import Clock
from teaagentd.providers import llama_server
from teaagentd.providers.llama_server import Order, Served

log = structlog.get_logger()

_LAST_LINES = 20
_LINE_CHARACTERS = 500
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|PROXY|^TEAAGENTD_", re.IGNORECASE)


class NotServing(Exception):
    """The child ended before it was ready; the text is the reason that it gave."""


class LlamaProcess:
    """A child. `ready` gets what it serves, or `NotServing`; `ended` its exit status."""

    def __init__(self, order: Order, *, clock: Clock) -> None:
        self.ready: Future[Served] = Future()
        self.ended: Future[int] = Future()
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.lived_s = 0.0
        """How long it lived, once it has ended, from its start."""
        self.ended_at = 0.0
        """When it ended, on the clock that never goes back."""
        self._order = order
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def start(self) -> None:
        """Begin; returns at once."""
        threading.Thread(target=self._live, name="llama", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; returns at once. It takes no part in saying so."""
        self._stopping = True
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _live(self) -> None:
        started = self._clock.monotonic()
        status = -1
        try:
            status = self._serve()
        except (OSError, ValueError) as problem:
            self._fail(str(problem))
        finally:
            self.ended_at = self._clock.monotonic()
            self.lived_s = self.ended_at - started
            self._fail(f"it ended with status {status}")
            self.ended.set_result(status)
            log.debug("llama_ended", status=status)

    def _serve(self) -> int:
        """Run the child to its end; returns its exit status."""
        with subprocess.Popen(
            [sys.executable, "-P", str(Path(llama_server.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=scrubbed(os.environ),
            start_new_session=True,  # Ctrl-C in the terminal is meant for the turn, not for it
        ) as child:
            self._child = child
            if self._stopping:
                child.terminate()
            assert child.stdin is not None
            assert child.stdout is not None
            drain = threading.Thread(target=self._drain, args=(child.stderr,), daemon=True)
            drain.start()
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(self._order).encode() + b"\n")
                child.stdin.flush()
            line = child.stdout.readline()
            if line:
                self._hear(json.loads(line))
            status = child.wait()
            drain.join(timeout=1.0)
            return status

    def _hear(self, report: Mapping[str, object]) -> None:
        match report:
            case {"port": int(port), "window": int(window), "parameters": int(parameters)}:
                self.ready.set_result(Served(port=port, window=window, parameters=parameters))
            case _:
                self._fail(str(report.get("error", report)))

    def _fail(self, reason: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(NotServing(reason))

    def _drain(self, stream: object) -> None:
        """Read the child's log to its end, in pieces of bounded length; keep the last lines."""
        if not hasattr(stream, "readline"):
            return
        while line := stream.readline(_LINE_CHARACTERS):
            text = line.decode("utf-8", "replace").rstrip()
            self.last_lines.append(text)
            log.debug("llama", line=text)


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what may be a secret, or is meant for the daemon."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}


async def settled(future: Future[Served] | Future[int]) -> None:
    """Wait until `future` is done; cancelling the wait does not touch it."""
    loop, event = asyncio.get_running_loop(), anyio.Event()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(event.set)

    future.add_done_callback(tell)
    await event.wait()
