"""Retention: once a day, what is older than the configuration says goes, and its room is given
back, a little at a time so that no turn waits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from teaagentd.abc import Clock
from teaagentd.errors import StoreError
from teaagentd.store import Store

log = structlog.get_logger()

DAY_MS = 86_400_000
_FIRST_S, _STEP_S = 600.0, 3600.0
"""Seconds after the start until it is looked at first, and from then on."""
_BREATH_S = 0.05
"""Between two transactions: the turns' own come first."""
_JUMP_MS = 35 * DAY_MS
"""A clock that is so much further than the newest message and the last look may have jumped."""
_DRIFT_MS = 600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """How many days are kept; None is for ever."""

    transcripts: float | None
    outbox: float | None
    logs: float | None


class Retention:
    """Deletes only by a clock that has been steady for a day where it is far ahead of everything
    that is known: one that jumps must not empty the store."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        keep: Callable[[], Keep],
        logs: Path,
        sweep_files: Callable[[], Awaitable[None]],
    ) -> None:
        """`keep` is asked each time; `sweep_files` removes the files that no message names."""
        self._sweep_files = sweep_files
        self._store = store
        self._clock = clock
        self._keep = keep
        self._logs = logs
        self._steady_since: tuple[int, float] | None = None
        self._due = anyio.Event()

    def request(self) -> None:
        """Look now."""
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = _FIRST_S
        while True:
            with anyio.move_on_after(wait_s):
                await self._due.wait()
            self._due = anyio.Event()
            wait_s = _STEP_S
            try:
                await self.look()
            except StoreError as error:
                log.error("retention_failed", error=str(error))

    async def look(self) -> bool:
        """Sweep if that is due and the clock can be trusted; whether it was done. Raises
        `StoreError`."""
        now, keep = self._clock.now_ms(), self._keep()
        swept = await self._store.admin.swept_at()
        steady = self._is_steady(now)
        if swept is not None and 0 <= now - swept < DAY_MS:
            return False
        known = max(swept or 0, await self._store.admin.newest_at())
        if now < known or (known and now - known > _JUMP_MS and not steady):
            log.warning("retention_waits", reason="the clock may have jumped", now_ms=now)
            return False
        await self._sweep(keep, now)
        return True

    def _is_steady(self, now: int) -> bool:
        """Whether wall clock and monotonic clock have gone along for a day."""
        monotonic = self._clock.monotonic()
        if self._steady_since is not None:
            since, at = self._steady_since
            passed_ms = (monotonic - at) * 1000
            if abs((now - since) - passed_ms) <= _DRIFT_MS:
                return passed_ms >= DAY_MS
        self._steady_since = now, monotonic
        return False

    async def _sweep(self, keep: Keep, now: int) -> None:
        admin = self._store.admin
        await admin.note_sweep()
        if keep.transcripts is not None:
            await admin.sweep_transcripts(_before(now, keep.transcripts), self._breathe)
        if keep.outbox is not None:
            await admin.sweep_texts(_before(now, keep.outbox), self._breathe)
        if keep.logs is not None:
            await anyio.to_thread.run_sync(_sweep_logs, self._logs, keep.logs)
        await self._sweep_files()
        freed = await admin.shrink(self._breathe)
        log.info("swept", pages_freed=freed)

    async def _breathe(self) -> None:
        await anyio.sleep(_BREATH_S)


def _before(now: int, days: float) -> int:
    return now - int(days * DAY_MS)


def _sweep_logs(folder: Path, days: float) -> None:
    """Delete log files that nothing was written to for so long."""
    end = time.time() - days * 86_400
    for file in folder.glob("teaagentd.log*"):
        try:
            if file.stat().st_mtime < end:
                file.unlink()
        except OSError as error:
            log.warning("log_not_removed", path=str(file), error=str(error))
