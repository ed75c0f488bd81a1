"""Monitor: looks once a minute whether there is something that the owner should know."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from teaagentd.abc import Clock
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.core.gate import Gate
from teaagentd.errors import StoreError
from teaagentd.services.alerts import Alerts
from teaagentd.store import Store
from teaagentd.types import AlertKind

log = structlog.get_logger()

STEP_S = 60.0
LITTLE_BYTES, ENOUGH_BYTES = 500_000_000, 600_000_000
"""Free space below which the owner is told, and above which all is well again."""
_RESTARTS = 3
_GOOD_WHILE_MS = 600_000


class Monitor:
    """Raises and clears alerts by what it finds; does nothing else."""

    def __init__(
        self,
        *,
        alerts: Alerts,
        store: Store,
        dispatcher: Dispatcher,
        gate: Gate,
        clock: Clock,
        state_file: Path,
        on_lost: Callable[[str], None],
        look_besides: Callable[[], Awaitable[None]] | None = None,
        step_s: float = STEP_S,
    ) -> None:
        """`on_lost` is called when the database file is not there any more, with what is known;
        `look_besides` at each look. It may raise `StoreError`."""
        self._alerts = alerts
        self._store = store
        self._dispatcher = dispatcher
        self._gate = gate
        self._clock = clock
        self._state_file = state_file
        self._on_lost = on_lost
        self._look_besides = look_besides
        self._step_s = step_s
        self._identity: tuple[int, int] | None = None
        self._due = anyio.Event()
        store.admin.on_damage(self.request)

    def request(self) -> None:
        """Look now."""
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._identity = await anyio.to_thread.run_sync(_identity, self._state_file)
        while True:
            try:
                await self.look()
            except StoreError as error:
                self._alerts.raised(
                    "database", "", f"The database cannot be read: {error}. Look at its disk."
                )
            else:
                self._alerts.cleared("database", "")
            with anyio.move_on_after(self._step_s):
                await self._due.wait()
            self._due = anyio.Event()

    async def look(self) -> None:
        """Look at everything once. Raises `StoreError`."""
        if (damage := self._store.admin.damage) is not None:
            self._alerts.raised("database", "damage", f"The database is damaged. {damage}")
        else:
            self._alerts.cleared("database", "damage")
        await self._look_at_disk()
        await self._look_at_file()
        self._look_at_channels()
        await self._look_at_queues()
        if self._look_besides is not None:
            await self._look_besides()

    async def _look_at_disk(self) -> None:
        folder = self._state_file.parent
        try:
            free = (await anyio.to_thread.run_sync(shutil.disk_usage, folder)).free
        except OSError as error:
            log.warning("disk_not_looked_at", error=str(error))
            return
        if free < LITTLE_BYTES:
            self._alerts.raised(
                "disk",
                str(folder),
                f"The disk of {folder} is nearly full. When it is, new messages are refused; "
                "nothing accepted is lost. Make room.",
            )
        elif free > ENOUGH_BYTES:
            self._alerts.cleared("disk", str(folder))

    async def _look_at_file(self) -> None:
        found = await anyio.to_thread.run_sync(_identity, self._state_file)
        if found != self._identity and self._identity is not None:
            state = "is gone" if found is None else "was replaced by another file"
            self._on_lost(f"{self._state_file} {state} while the daemon ran")

    def _look_at_channels(self) -> None:
        now = self._clock.now_ms()
        names = set()
        for status in self._dispatcher.channel_status():
            names.add(status.name)
            if status.state == "restarting" and status.restarts >= _RESTARTS:
                self._alerts.raised(
                    "channel",
                    status.name,
                    f"The channel {status.name} does not stay up ({status.error}). It is tried "
                    "again and again; what is to be sent by it waits.",
                )
            elif status.state == "running" and now - status.since >= _GOOD_WHILE_MS:
                self._alerts.cleared("channel", status.name)
        self._clear_others("channel", dict.fromkeys(names))

    async def _look_at_queues(self) -> None:
        letters = await self._store.admin.dead_letters()
        for channel, count in letters.items():
            self._alerts.raised(
                "dead_letters",
                channel,
                f"{count} of my texts could not be delivered by {channel} and were given up. "
                "`teaagentd outbox list` shows them; `retry` or `drop` decides.",
            )
        self._clear_others("dead_letters", letters)
        depths = await self._store.depths()
        if depths.dead_rows:
            self._alerts.raised(
                "dead_messages",
                "",
                f"{depths.dead_rows} messages were set aside without an answer. `teaagentd inbox "
                "list` shows them; `retry` or `drop` decides.",
            )
        else:
            self._alerts.cleared("dead_messages", "")
        self._look_at_cap("inbox", depths.inbox, self._store.max_pending, "bus.max_pending")
        self._look_at_cap("waits", self._gate.parked, self._gate.max_parked, "max_parked_turns")

    def _look_at_cap(self, subject: str, found: int, cap: int, key: str) -> None:
        if found >= cap:
            what = {
                "inbox": f"The inbox is full: {cap} messages wait, and new ones are refused.",
                "waits": f"{cap} turns wait for someone, and no more may.",
            }[subject]
            self._alerts.raised(
                "full", subject, f"{what} See `teaagentd status`; the cap is {key}."
            )
        elif found < cap * 0.9:
            self._alerts.cleared("full", subject)

    def _clear_others(self, kind: AlertKind, found: Mapping[str, object]) -> None:
        for alert in self._alerts.of(kind):
            if alert.subject not in found:
                self._alerts.cleared(kind, alert.subject)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands under this name; it is not opened."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
