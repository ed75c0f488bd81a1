"""One session as a turn sees it: the notes beside its messages, and what memory adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from teaagentd.abc import MemoryEngine
from teaagentd.agent.notes import MAX_MEMORY
from teaagentd.store import Store
from teaagentd.transcript import one_line
from teaagentd.types import InboxRow, LLMMessage, SessionKey

log = structlog.get_logger()


class NoteWriter(Protocol):
    """Renders a note; pure and quick. `ContextBuilder.note` is one."""

    def __call__(self, row: InboxRow, *, memories: Sequence[str] = ()) -> str | None: ...


class Session:
    """Renders each message's note once, with the memories recalled for it (prefix-stable)."""

    def __init__(
        self, key: SessionKey, *, store: Store, write_note: NoteWriter, memory: MemoryEngine | None
    ) -> None:
        self.key = key
        self._store = store
        self._write_note = write_note
        self._memory = memory
        self._recalled: dict[int, tuple[str, ...]] = {}

    async def recall(self) -> None:
        """Ask memory about the messages that wait, before the transaction that claims them.

        A memory that was noted in this session before is not noted again. Failure costs the
        memories, never the turn. Without a memory engine this does nothing.
        """
        if self._memory is None:
            return
        rows = await self._store.pending_rows(self.key)
        noted = "\n".join(await self._store.notes(self.key))
        for row in rows:
            if row.id not in self._recalled:
                found = await self.recall_for(row.message.content)
                fresh = tuple(text for text in found if one_line(text, MAX_MEMORY) not in noted)
                self._recalled[row.id] = fresh
                noted = "\n".join((noted, *(one_line(text, MAX_MEMORY) for text in fresh)))

    async def recall_for(self, text: str) -> Sequence[str]:
        """What memory has for `text`; empty on failure."""
        if self._memory is None:
            return ()
        try:
            return await self._memory.recall(self.key, text)
        except Exception as error:
            # A memory engine is a plugin: this is its supervising boundary.
            log.warning("memory_recall_failed", session=str(self.key), error=repr(error))
            return ()

    def note(self, row: InboxRow) -> str | None:
        """The note beside `row`; called inside the transaction that claims it."""
        return self._write_note(row, memories=self._recalled.pop(row.id, ()))

    async def remember(self, exchange: Sequence[LLMMessage]) -> None:
        """Give memory one completed exchange. Failure is logged."""
        if self._memory is None:
            return
        try:
            await self._memory.remember(self.key, exchange)
        except Exception as error:
            log.warning("memory_store_failed", session=str(self.key), error=repr(error))
