"""Reloader: takes up a changed configuration without a restart, all of it or nothing.

The files are looked at by watchfiles, at steps of five seconds and by their state, not by the
kernel's events: those would come for each write to the database, which lies in the same folder.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
import structlog

from teaagentd.config import Loaded, Settings, load_settings
from teaagentd.errors import ConfigError
from teaagentd.home import Home

log = structlog.get_logger()

_STEP_MS = 5_000
_AGAIN_S = 0.5
"""The pause before a file that was written while it was read is read again."""
_State: TypeAlias = tuple[tuple[int, ...] | None, ...]


class Reloader:
    """Watches the configuration of one home and has it applied. `problem` says why the file that
    is there is not in force, None if it is."""

    def __init__(
        self,
        home: Home,
        *,
        current: Callable[[], Settings],
        apply: Callable[[Settings], Awaitable[None]],
        on_problem: Callable[[str | None], Awaitable[None]],
        step_ms: int = _STEP_MS,
    ) -> None:
        """`apply` raises `ConfigError` and has changed nothing then. `on_problem` is told of each
        new problem once, and with None that there is none: at first, and when it is mended."""
        self._home = home
        self._current = current
        self._apply = apply
        self._on_problem = on_problem
        self._step_ms = step_ms
        self._due = anyio.Event()
        self._had_content = False
        self._told = False
        self.problem: str | None = None

    def request(self) -> None:
        """Look at the configuration now."""
        self._due.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        config = (self._home.config_file,)
        while True:
            before = await anyio.to_thread.run_sync(_state, config)
            files = await self._take_up()
            state = await anyio.to_thread.run_sync(_state, files)
            if state[:1] != before:
                await anyio.sleep(_AGAIN_S)
            else:
                with _Watch(files, state, self._step_ms, self.request):
                    await self._due.wait()
                    self._due = anyio.Event()

    async def _take_up(self) -> tuple[Path, ...]:
        """Bring what is in force to what the files say. Returns the files to watch."""
        files: tuple[Path, ...] = (self._home.config_file,)
        try:
            has_content = await anyio.to_thread.run_sync(self._refuse_loss)
            loaded = await anyio.to_thread.run_sync(load_settings, self._home)
            files += tuple(secret_files(loaded))
            if loaded.settings != self._current():
                with loaded.placed():
                    await self._apply(loaded.settings)
                for warning in loaded.warnings:
                    log.warning("configuration", problem=warning)
        except ConfigError as error:
            await self._tell(str(error))
        else:
            self._had_content = has_content
            await self._tell(None)
        return files

    def _refuse_loss(self) -> bool:
        """Whether the file says anything. Raises `ConfigError` for one that did and is now gone or
        empty: that is half a change, or an accident, and not a wish for the defaults."""
        path = self._home.config_file
        try:
            has_content = path.stat().st_size > 0
        except OSError:
            has_content = False
        if self._had_content and not has_content:
            raise ConfigError(
                f"{path}: is gone or empty. To go back to the defaults, leave a comment in it"
            )
        return has_content

    async def _tell(self, problem: str | None) -> None:
        if self._told and problem == self.problem:
            return
        if self.problem is not None and problem is None:
            log.info("configuration_mended")
        self._told, self.problem = True, problem
        if problem is not None:
            log.warning("configuration_kept", problem=problem, in_force="the one before")
        await self._on_problem(problem)


def secret_files(loaded: Loaded) -> Iterable[Path]:
    """The files that secrets were read from."""
    for origin in loaded.origins.values():
        if origin.kind == "secret file":
            yield Path(origin.place)


class _Watch:
    """A thread that calls `changed`, in the event loop, once `files` are no longer in `state`."""

    def __init__(
        self, files: tuple[Path, ...], state: _State, step_ms: int, changed: Callable[[], None]
    ) -> None:
        self._files = files
        self._step_ms = step_ms
        self._changed = changed
        self._over = threading.Event()
        self._before = state

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        # A daemon thread, as it may sleep for a step when the process wants to end.
        threading.Thread(target=self._watch, args=(loop,), name="config-watch", daemon=True).start()

    def __exit__(self, *details: object) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        # Imported here, off the way to ready.
        from watchfiles import watch

        folders = {file.parent for file in self._files if file.parent.is_dir()}
        seen = self._before
        try:
            for _ in watch(
                *folders,
                watch_filter=None,
                step=self._step_ms,
                debounce=self._step_ms,
                rust_timeout=1,
                yield_on_timeout=True,  # at each step: not every change shows in a whole second
                stop_event=self._over,
                raise_interrupt=False,
                force_polling=True,
                poll_delay_ms=self._step_ms,
                recursive=False,
            ):
                if self._over.is_set():
                    return
                now, seen_before = _state(self._files), seen
                seen = now
                # Settled: nobody is writing it at this moment.
                if now == seen_before != self._before:
                    loop.call_soon_threadsafe(self._changed)
                    return
        except (OSError, RuntimeError) as error:
            # Also the loop's end while it was called.
            if not self._over.is_set():
                log.warning("configuration_not_watched", error=str(error), mend="send SIGHUP")


def _state(files: Iterable[Path]) -> _State:
    found: list[tuple[int, ...] | None] = []
    for file in files:
        try:
            s = os.stat(file)
            found.append((s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino, s.st_dev))
        except OSError:
            found.append(None)
    return tuple(found)
