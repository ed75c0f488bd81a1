"""Alerts: what the owner should know, kept, shown in `status`, and told once in a chat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import anyio
import structlog

from teaagentd.abc import Clock
from teaagentd.errors import StoreError
from teaagentd.store import Store
from teaagentd.types import Alert, AlertKind, OutboundMessage

log = structlog.get_logger()

_MOST = 200
"""Alerts held at once; what comes beyond them is in the log."""
_AGAIN_S = 60.0


class Alerts:
    """`raised` and `cleared` may be called from anywhere in the event loop and never wait; `run`
    keeps and tells what they were told. A store that fails delays that, and loses nothing."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        announce: Callable[[Sequence[OutboundMessage]], None],
        channels: Callable[[], Collection[str]],
    ) -> None:
        """`channels` names those by which the owner can be reached now."""
        self._store = store
        self._clock = clock
        self._announce = announce
        self._channels = channels
        self._open: dict[tuple[AlertKind, str], Alert] = {}
        self._unkept: dict[tuple[AlertKind, str], None] = {}
        self._cleared: dict[tuple[AlertKind, str], None] = {}
        self._changed = anyio.Event()
        self._keeping = anyio.Lock()

    def raised(self, kind: AlertKind, subject: str, text: str) -> None:
        """There is a cause for an alert; that it is raised already is no matter."""
        name = kind, subject
        known = self._open.get(name)
        if known is not None and known.text == text:
            return
        if known is None:
            log.error("alert", kind=kind, subject=subject, text=text)
            if len(self._open) >= _MOST:
                return
            known = Alert(kind=kind, subject=subject, text=text, raised_at=self._clock.now_ms())
        self._open[name] = replace(known, text=text)
        self._cleared.pop(name, None)
        self._unkept[name] = None
        self._changed.set()

    def cleared(self, kind: AlertKind, subject: str) -> None:
        """There is no cause any more, if there was one."""
        if self._open.pop((kind, subject), None) is not None:
            log.info("alert_cleared", kind=kind, subject=subject)
            self._unkept.pop((kind, subject), None)
            self._cleared[kind, subject] = None
            self._changed.set()

    def open(self) -> Sequence[Alert]:
        """What is the matter now, the oldest first."""
        return sorted(self._open.values(), key=lambda alert: alert.raised_at)

    def of(self, kind: AlertKind) -> Sequence[Alert]:
        """Those of one kind."""
        return [alert for alert in self._open.values() if alert.kind == kind]

    async def run(self) -> None:
        """Until cancelled."""
        loaded = False
        while True:
            self._changed = anyio.Event()
            again_s: float | None = _AGAIN_S
            try:
                if not loaded:
                    self._take_over(await self._store.admin.open_alerts())
                    loaded = True
                await self._keep()
                untold = any(alert.told_at is None for alert in self._open.values())
                again_s = _AGAIN_S if untold else None
            except StoreError as error:
                log.error("alerts_not_kept", error=str(error), again_in_s=_AGAIN_S)
            with anyio.move_on_after(again_s):
                await self._changed.wait()

    async def settle(self) -> None:
        """Keep and tell all that was raised until now. Raises `StoreError`."""
        await self._keep()

    def _take_over(self, kept: Sequence[Alert]) -> None:
        """What an earlier process raised stands until its cause is found to have gone."""
        for alert in kept:
            name = alert.kind, alert.subject
            mine = self._open.get(name)
            self._open[name] = alert if mine is None else replace(alert, text=mine.text)

    async def _keep(self) -> None:
        async with self._keeping:
            await self._keep_alone()

    async def _keep_alone(self) -> None:
        while self._cleared:
            name = next(iter(self._cleared))
            await self._store.admin.clear_alert(*name)
            self._cleared.pop(name, None)
        untold = [name for name, alert in self._open.items() if alert.told_at is None]
        for name in dict.fromkeys((*self._unkept, *untold)):
            alert = self._open.get(name)
            if alert is None:
                continue
            self._unkept.pop(name, None)
            try:
                kept, said = await self._store.admin.raise_alert(alert, self._reaching(alert))
            except StoreError:
                self._unkept[name] = None
                raise
            if name in self._open:
                self._open[name] = replace(kept, text=self._open[name].text)
            self._announce(said)

    def _reaching(self, alert: Alert) -> Collection[str]:
        """By which channels it can be told: what is the matter with one is not told by it."""
        return [name for name in self._channels() if name != alert.subject]
