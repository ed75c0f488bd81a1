"""Intake: what a channel is given to post to, with the files that come with its messages."""

from __future__ import annotations

import structlog

from teaagentd.attachments import Attachments
from teaagentd.core.bus import MessageBus
from teaagentd.errors import InvalidMessage
from teaagentd.store import Store
from teaagentd.store.values import Accepted
from teaagentd.types import Attachment, InboundMessage

log = structlog.get_logger()


class Intake:
    """The `Inbox` of every channel and of the API."""

    def __init__(self, *, bus: MessageBus, files: Attachments, store: Store) -> None:
        self.files = files
        self._bus = bus
        self._store = store

    async def publish(self, message: InboundMessage) -> Accepted:
        """See `MessageBus.publish`. A message with a file that is not kept is refused."""
        for one in message.attachments:
            if await self.files.find(one.path) is None:
                raise InvalidMessage("attachments", f"there is no file {one.path!r}; hand it in")
        return await self._bus.publish(message)

    async def keep(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        return await self.files.keep(data, name=name, media_type=media_type)

    async def sweep(self) -> None:
        """Remove the files that no message names any more. Raises `StoreError`."""
        removed = await self.files.sweep(await self._store.admin.named_files())
        if removed:
            log.info("files_removed", count=removed)
