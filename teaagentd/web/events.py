"""EventStream: the feed as server-sent events, for as long as someone listens.

Each event has an id. A client that comes back with the last one it saw, in `Last-Event-ID`, is
first given what it missed: from memory, or, where that is gone or the daemon was restarted, the
replies out of the store, with a `dropped` event for what is not to be had any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from teaagentd.core.activity import ActivityFeed
from teaagentd.event_buffer import Subscription
from teaagentd.store import Store
from teaagentd.transcript import clean_text
from teaagentd.types import Activity, Delta, FeedEvent, Reply, Reset, SessionKey
from teaagentd.web import views
from teaagentd.web.waits import LongWaits

KEEP_ALIVE_S = 30.0
_LAST_WORD_S = 1.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
]
_BEGIN = b": listening\n\n"
_KEEP_ALIVE = b": still here\n\n"
_PAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class EventId:
    """Where in which feed an event stands, and which text was the newest then."""

    feed: str
    number: int
    reply: int

    def __str__(self) -> str:
        return f"{self.feed}-{self.number}-{self.reply}"

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """None for what is no id of ours. It is never refused: a browser, which sends it by
        itself, would come again and again."""
        feed, _, rest = text.partition("-")
        number, _, reply = rest.partition("-")
        if not (feed and number.isascii() and number.isdigit() and len(number) < 19):
            return None
        if not (reply.isascii() and reply.isdigit() and len(reply) < 19):
            return None
        return cls(feed=feed, number=int(number), reply=int(reply))


class EventStream(Response):
    """`phase`, `delta`, `reset` and `reply` events in the order they happened. Where its reader
    was too slow, or came back too late, a `dropped` event says how many are missing before what
    follows, or null where nobody knows; missed replies can be read again from the outbox."""

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: ActivityFeed,
        store: Store,
        waits: LongWaits,
        *,
        session_key: SessionKey | None,
        last_event_id: str | None,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__()
        self._feed = feed
        self._store = store
        self._key = session_key
        self._seen = last_event_id
        self._waits = waits
        self._keep_alive_s = keep_alive_s
        self._reply = 0
        """The id of the newest text that the client has been given, or came too late for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Subscribed before the client hears of it: it then misses nothing that it looks for.
        async with self._feed.subscribe(self._key) as subscription:
            self._reply = self._feed.newest_reply
            missed = self._missed(subscription.number, self._feed.newest_reply)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _send_chunk(send, _BEGIN)
            await self._waits.attend(scope, partial(self._show, subscription, missed, send))
        with anyio.move_on_after(_LAST_WORD_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _missed(self, number: int, newest: int) -> AsyncIterator[bytes]:
        """What came between the event that was seen last and the one with this number, when the
        newest text had the id `newest`."""
        if self._seen is None:
            return
        seen = EventId.parse(self._seen)
        self._reply = newest if seen is None else seen.reply
        if seen is not None and seen.feed == self._feed.name:
            held = self._feed.since(seen.number, self._key)
            if held is not None:
                for one, event in held:
                    if one <= number:
                        yield self._encode(event, one)
                return
        yield _frame("dropped", {"count": None})
        while self._reply < newest:
            found = await self._store.replies(self._key, after=self._reply, limit=_PAGE)
            for message in found:
                if message.id <= newest:
                    yield self._encode(Reply(message=message), number)
            if not found or self._reply >= newest or found[-1].id > newest:
                break
        self._reply = max(self._reply, newest)

    async def _show(
        self, subscription: Subscription, missed: AsyncIterator[bytes], send: Send
    ) -> None:
        async for chunk in missed:
            await _send_chunk(send, chunk)
        told = 0
        while True:
            event: FeedEvent | None = None
            with anyio.move_on_after(self._keep_alive_s):
                event = await anext(subscription)
            if event is None:
                await _send_chunk(send, _KEEP_ALIVE)
                continue
            chunk = self._encode(event, subscription.number)
            if (dropped := subscription.dropped) > told:
                chunk = _frame("dropped", {"count": dropped - told}) + chunk
                told = dropped
            await _send_chunk(send, chunk)

    def _encode(self, event: FeedEvent, number: int) -> bytes:
        if isinstance(event, Reply):
            self._reply = max(self._reply, event.message.id)
        event_id = EventId(feed=self._feed.name, number=number, reply=self._reply)
        if isinstance(event, Reply):
            return _frame("reply", views.reply(event.message), event_id)
        view: dict[str, object] = {"session_key": str(event.session_key), "turn_id": event.turn_id}
        match event:
            case Activity():
                more = {"phase": event.phase, "detail": clean_text(event.detail)}
                return _frame("phase", view | more, event_id)
            case Delta():
                return _frame("delta", view | {"text": clean_text(event.text)}, event_id)
            case Reset():
                return _frame("reset", view, event_id)


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _frame(name: str, data: views.View, event_id: EventId | None = None) -> bytes:
    """One event; JSON has no line breaks of its own, so its data is one line."""
    head = b"" if event_id is None else b"id: %s\n" % str(event_id).encode()
    return head + b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
