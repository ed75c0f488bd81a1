"""Watchdog: sees a blocked event loop, a turn that will not end and a writer that does not answer,
does what can be done, and looks whether it helped before it says so."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

import anyio
import structlog

from teaagentd.core.loop import Loop
from teaagentd.core.turn import Turn
from teaagentd.errors import StoreError
from teaagentd.services.alerts import Alerts
from teaagentd.store import Store

log = structlog.get_logger()

STEP_S = 30.0
_TRIES = 3
"""How often one turn is tried to be freed."""


class Watchdog:
    """`run` in the event loop that it watches; it looks every `step_s` seconds, from a thread of
    its own at the loop, from the loop at the rest. `grace_s` is what a turn may take beyond its
    end, and what the loop and the writer may take to answer."""

    def __init__(
        self,
        *,
        loop: Loop,
        store: Store,
        alerts: Alerts,
        step_s: float = STEP_S,
        grace_s: float = 60.0,
    ) -> None:
        self._loop = loop
        self._store = store
        self._alerts = alerts
        self._step_s = step_s
        self._grace_s = grace_s
        self._tries: dict[str, int] = {}

    async def run(self) -> None:
        """Until cancelled."""
        blockage = _LoopWatch(asyncio.get_running_loop(), self._step_s, self._grace_s, self._tell)
        blockage.start()
        try:
            while True:
                await anyio.sleep(self._step_s)
                await self._look_at_turns()
                await self._look_at_writer()
        finally:
            blockage.over.set()

    def _tell(self, blocked_s: float, where: str) -> None:
        """The event loop answers again after it did not."""
        self._alerts.raised(
            "watchdog",
            "event loop",
            f"For {blocked_s:.0f} s nothing could be answered: something blocked me, at {where}. "
            "It is over; the log has the whole place.",
        )

    async def _look_at_turns(self) -> None:
        late = [turn for turn in self._loop.live() if turn.overdue_s() > self._grace_s]
        self._tries = {turn.id: self._tries.get(turn.id, 0) for turn in late}
        for turn in late:
            if self._tries[turn.id] < _TRIES:
                self._tries[turn.id] += 1
                await self._free(turn)

    async def _free(self, turn: Turn) -> None:
        key = str(turn.key)
        log.error("turn_stuck", session=key, turn=turn.id, overdue_s=round(turn.overdue_s()))
        try:
            await self._loop.abandon(turn)
        except StoreError as error:
            log.error("turn_not_freed", session=key, turn=turn.id, error=str(error))
            return
        running = {one.id for one in await self._store.running_turns()}
        if turn.id in running or turn in self._loop.live() or turn.slot.held:
            text = f"A turn of {key} does not end and could not be freed. Restart me."
            log.error("turn_not_freed", session=key, turn=turn.id)
        else:
            text = (
                f"A turn of {key} did not end in time and was given up; its sender was told, and "
                "what waited behind it is answered. Something in it hangs; the log says where."
            )
            log.warning("turn_freed", session=key, turn=turn.id)
        self._alerts.raised("watchdog", turn.id, text)

    async def _look_at_writer(self) -> None:
        late = True
        with anyio.move_on_after(self._grace_s):
            try:
                await self._store.ping()
            except StoreError as error:
                self._alerts.raised("database", "writer", f"Nothing can be kept: {error}.")
                return
            late = False
        if late:
            where = _stack_of("store-writer")
            log.error("writer_silent", for_s=self._grace_s, at=where)
            self._alerts.raised(
                "database",
                "writer",
                f"The database has not answered for {self._grace_s:.0f} s; new messages wait. Its "
                "disk may hang. Nothing accepted is lost; if it stays so, restart me.",
            )
        else:
            self._alerts.cleared("database", "writer")


class _LoopWatch(threading.Thread):
    """Asks the event loop to answer, again and again; a daemon thread, so it keeps no process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        step_s: float,
        grace_s: float,
        tell: Callable[[float, str], None],
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.over = threading.Event()
        self._loop = loop
        self._step_s = step_s
        self._grace_s = grace_s
        self._tell = tell
        self._owner = threading.get_ident()

    def run(self) -> None:
        while not self.over.wait(self._step_s):
            answered = threading.Event()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
                if answered.wait(self._grace_s) or self.over.is_set():
                    continue
                stack = _stack(self._owner)
                log.error("event_loop_blocked", for_s=self._grace_s, at=stack)
                answered.wait()
                blocked_s = time.monotonic() - asked
                log.warning("event_loop_answers_again", after_s=round(blocked_s, 1))
                self._loop.call_soon_threadsafe(self._tell, blocked_s, _last_line(stack))
            except RuntimeError:
                return  # the loop is closed


def _stack_of(name: str) -> str:
    """Where the thread of this name stands."""
    found = next((one for one in threading.enumerate() if one.name == name), None)
    return _stack(found.ident) if found is not None and found.ident is not None else "it has ended"


def _stack(ident: int) -> str:
    frame = sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame is not None else "unknown"


def _last_line(stack: str) -> str:
    """The innermost place of a stack, without its source."""
    places = [line.strip() for line in stack.splitlines() if line.lstrip().startswith("File ")]
    return places[-1] if places else "an unknown place"
