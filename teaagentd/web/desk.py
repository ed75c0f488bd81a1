"""Desk: the queues entry by entry, what is looked for in transcripts, and what is taken away."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from teaagentd.errors import StoreDamaged, StoreError, StoreUnavailable
from teaagentd.store.erasure import Target
from teaagentd.store.values import Removed
from teaagentd.types import Address
from teaagentd.web import reading, views
from teaagentd.web.problems import Problem, invalid
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer

T = TypeVar("T")

DROPPED = "This message was taken out by the owner of this assistant and is not answered."
_BEFORE_KEY = b"/v1/sessions/"
_ERASE_FIELDS = frozenset({"sender", "channel", "chat_id", "session_key", "only_count"})


class Desk:
    """What stands under `/v1/inbox`, `/v1/outbox`, `/v1/search` and `/v1/erase`."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon
        self._admin = daemon.store.admin

    async def inbox(self, request: Request) -> Response:
        """What waits to be answered and what was set aside, the newest first."""
        limit = reading.page_size(request)
        entries = await self._admin.inbox(limit=limit, before=_before(request))
        return JSONAnswer(
            {
                "messages": [views.inbox_entry(entry) for entry in entries],
                "next": entries[-1].id if len(entries) == limit else None,
            }
        )

    async def drop_row(self, request: Request) -> Response:
        """Answer a message that waits with a word that says so; list a dead one no longer."""
        row_id = reading.row_in_path(request)
        key, said = await _possible(self._admin.drop_row(row_id, text=DROPPED))
        self._daemon.bus.forget(key, [row_id])
        self._daemon.dispatcher.announce(said)
        return JSONAnswer({"id": row_id, "session_key": str(key)})

    async def outbox(self, request: Request) -> Response:
        """What waits to be delivered and what was given up, the newest first."""
        limit = reading.page_size(request)
        entries = await self._admin.outbox(limit=limit, before=_before(request))
        return JSONAnswer(
            {
                "texts": [views.outbox_entry(entry) for entry in entries],
                "next": entries[-1].id if len(entries) == limit else None,
            }
        )

    async def retry_letter(self, request: Request) -> Response:
        """202 once a text that was given up is to be delivered again."""
        outbound_id = reading.row_in_path(request)
        channel = await _possible(self._admin.retry_letter(outbound_id))
        self._daemon.dispatcher.kick(channel)
        return JSONAnswer({"id": outbound_id, "channel": channel}, 202)

    async def drop_letter(self, request: Request) -> Response:
        """Deliver a text no more."""
        outbound_id = reading.row_in_path(request)
        await _possible(self._admin.drop_letter(outbound_id))
        return JSONAnswer({"id": outbound_id})

    async def search(self, request: Request) -> Response:
        """Messages that hold `q`, the newest first. `next` is the `before` with which to go on; a
        page may be empty and still have one."""
        text = request.query_params.get("q", "")
        if not text.strip():
            raise invalid("q", "must not be blank")
        limit = reading.page_size(request)
        found, following = await self._admin.search(text, limit=limit, before=_before(request))
        return JSONAnswer({"messages": [views.found(one) for one in found], "next": following})

    async def delete_session(self, request: Request) -> Response:
        """Delete everything of a session; with `?only_count=true` say what that would be."""
        key = reading.key_in_path(request, _BEFORE_KEY)
        assert key is not None
        only_count = request.query_params.get("only_count") == "true"
        return await self._removed(
            await _possible(self._admin.delete_session(key, only_count=only_count)), only_count
        )

    async def erase(self, request: Request) -> Response:
        """Erase what is known of one `sender` (on one `channel` or all), of one chat or of one
        session; with `only_count` say what that would be."""
        values = reading.parse_object(await reading.read_body(request))
        if unknown := values.keys() - _ERASE_FIELDS:
            raise invalid(min(unknown), "there is no such field")
        only_count = values.get("only_count", False)
        if not isinstance(only_count, bool):
            raise invalid("only_count", "must be true or false")
        removed = await _possible(self._admin.erase(_target(values), only_count=only_count))
        return await self._removed(removed, only_count)

    async def _removed(self, removed: Removed, only_count: bool) -> Response:
        if not only_count:
            for pending in removed.waiting:
                self._daemon.bus.forget(pending.key, pending.ids)
            self._daemon.feed.recent.forget(removed.keys)
            await self._daemon.intake.sweep()
        return JSONAnswer(views.removed(removed))


def _before(request: Request) -> int | None:
    return reading.integer(request, "before", 0) or None


def _target(values: reading.Values) -> Target:
    sender = reading.stored_identifier(values, "sender")
    channel = reading.stored_identifier(values, "channel")
    chat_id = reading.stored_identifier(values, "chat_id")
    session = reading.text(values, "session_key")
    if session is not None:
        if sender is not None or channel is not None or chat_id is not None:
            raise invalid("session_key", "stands alone")
        return Target(session=reading.session_key(session))
    if sender is not None and chat_id is None:
        return Target(sender=sender, channel=channel)
    if sender is None and chat_id is not None and channel is not None:
        return Target(chat=Address(channel=channel, chat_id=chat_id))
    raise invalid("sender", "name a sender, or a channel and a chat_id, or a session_key")


async def _possible(call: Awaitable[T]) -> T:
    """409 for what cannot be done with what is there."""
    try:
        return await call
    except (StoreUnavailable, StoreDamaged):
        raise
    except StoreError as error:
        status = 404 if str(error).startswith("there is no") else 409
        raise Problem(status, str(error)) from None
