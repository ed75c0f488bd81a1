"""Messages: posting them, reading what answers them, and taking up the dead ones again."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response

from teaagentd.errors import StoreDamaged, StoreError, StoreUnavailable
from teaagentd.store.store import PULL_CHANNELS
from teaagentd.store.values import Accepted
from teaagentd.types import DEFAULT_CHANNEL, Attachment, InboundMessage, OutboundMessage, SessionKey
from teaagentd.web import reading, views
from teaagentd.web.files import Files
from teaagentd.web.problems import Problem, invalid
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer
from teaagentd.web.waits import LongWaits

LONGEST_WAIT_S = 60.0
_FIELDS = frozenset({"channel", "chat_id", "sender_id", "content", "external_id", "attachments"})


class Messages:
    """What stands under `/v1/messages`, `/v1/replies` and `/v1/inbox`."""

    def __init__(self, daemon: Served, waits: LongWaits, files: Files) -> None:
        self._bus = daemon.bus
        self._intake = daemon.intake
        self._files = files
        self._store = daemon.store
        self._dispatcher = daemon.dispatcher
        self._waits = waits

    async def post(self, request: Request) -> Response:
        """202 once it is kept."""
        values = reading.parse_object(await reading.read_body(request))
        attachments = await self._files.named(values)
        return _accepted(await self._intake.publish(self._message(values, attachments)))

    def _message(
        self, values: reading.Values, attachments: tuple[Attachment, ...]
    ) -> InboundMessage:
        if unknown := values.keys() - _FIELDS:
            raise invalid(min(unknown), "there is no such field")
        channel = reading.identifier(values, "channel") or DEFAULT_CHANNEL
        if channel not in PULL_CHANNELS and not self._dispatcher.serves(channel):
            raise invalid("channel", f"there is no channel {channel!r} here")
        chat_id = reading.identifier(values, "chat_id")
        if chat_id is None:
            raise invalid("chat_id", "is missing")
        content = reading.text(values, "content")
        if content is None:
            raise invalid("content", "is missing")
        if not content.strip() and not attachments:
            raise invalid("content", "must not be blank")
        return InboundMessage(
            channel=channel,
            chat_id=chat_id,
            content=content,
            sender_id=reading.identifier(values, "sender_id"),
            external_id=reading.identifier(values, "external_id"),
            attachments=attachments,
        )

    async def replies(self, request: Request) -> Response:
        """The texts after the one with id `after`, oldest first. With none there yet it waits
        for the first, `wait` seconds at most."""
        key = reading.key_in_query(request)
        if key is None:
            raise invalid("session_key", "is missing")
        after = reading.integer(request, "after", 0)
        limit = reading.page_size(request)
        wait_s = reading.seconds(request, "wait", most=LONGEST_WAIT_S)
        found: tuple[OutboundMessage, ...] | None
        if wait_s:
            found = await self._waits.attend(
                request.scope, lambda: self._await_replies(key, after, limit, wait_s)
            )
        else:
            found = await self._dispatcher.replies(key, after=after, limit=limit)
        return JSONAnswer([views.reply(message) for message in found or ()])

    async def _await_replies(
        self, key: SessionKey, after: int, limit: int, wait_s: float
    ) -> tuple[OutboundMessage, ...]:
        deadline = anyio.current_time() + wait_s
        found = await self._dispatcher.replies(key, after=after, limit=limit, wait_s=wait_s)
        if not found:
            # A dispatcher that drains waits no longer. Who asked to wait is not to ask again
            # and again for the rest of the drain, in which the daemon has nothing more to say.
            await anyio.sleep_until(deadline)
        return found

    async def dead(self, request: Request) -> Response:
        """Messages whose turn failed for good, the newest first."""
        rows = await self._store.dead_rows(limit=reading.page_size(request))
        return JSONAnswer({"messages": [views.dead_row(row) for row in rows]})

    async def retry(self, request: Request) -> Response:
        """202 once a dead message is accepted anew."""
        row_id = reading.row_in_path(request)
        try:
            accepted = await self._store.retry_dead(row_id)
        except (StoreUnavailable, StoreDamaged):
            raise
        except StoreError as error:
            raise Problem(404, str(error)) from None
        self._bus.admit(accepted)
        return _accepted(accepted)


def _accepted(accepted: Accepted) -> Response:
    view = {
        "id": accepted.id,
        "session_key": str(accepted.session_key),
        "duplicate": accepted.duplicate,
    }
    return JSONAnswer(view, 202)
