"""Strangers: texts for channels that are not configured are dead letters at once."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog

from teaagentd.errors import StoreError
from teaagentd.store import Store

log = structlog.get_logger()


class Strangers:
    """Refuses what nobody is there to deliver."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: set[str] = set()
        self._seen = anyio.Event()

    def kick(self, channel: str) -> None:
        """There may be texts for `channel`, which nobody serves."""
        self._names.add(channel)
        self._seen.set()

    async def run(self, kick: Callable[[str], None]) -> None:
        """Until cancelled. `kick` is first called with each channel that has texts waiting."""
        known = False
        while True:
            self._seen = anyio.Event()
            try:
                if not known:
                    for name in await self._store.undelivered_channels():
                        kick(name)
                    known = True
                while self._names:
                    await self._refuse_all(self._names.pop())
            except StoreError as error:
                log.error("letters_not_refused", error=str(error))
            await self._seen.wait()

    async def _refuse_all(self, name: str) -> None:
        for letter in await self._store.undelivered(name):
            await self._store.refuse(letter.outbound.id, f"there is no channel named {name}")
            log.error("letter_dead", channel=name, outbound_id=letter.outbound.id)
