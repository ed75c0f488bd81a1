"""EventStream: the feed as server-sent events, for as long as someone listens."""

from __future__ import annotations

from functools import partial

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from teaagentd.core.activity import Subscription
from teaagentd.transcript import clean_text
from teaagentd.types import Activity, Delta, FeedEvent, Reply, Reset
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


class EventStream(Response):
    """`phase`, `delta`, `reset` and `reply` events in the order they happened. Where its reader
    was too slow, a `dropped` event says how many are missing before what follows; missed
    replies can be read again from the outbox, phases and deltas are gone."""

    media_type = "text/event-stream"

    def __init__(
        self, subscription: Subscription, waits: LongWaits, *, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        super().__init__()
        self._subscription = subscription
        self._waits = waits
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Subscribed before the client hears of it: it then misses nothing that it looks for.
        async with self._subscription:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _send_chunk(send, _BEGIN)
            await self._waits.attend(scope, partial(self._show, send))
        with anyio.move_on_after(_LAST_WORD_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _show(self, send: Send) -> None:
        told = 0
        while True:
            event: FeedEvent | None = None
            with anyio.move_on_after(self._keep_alive_s):
                event = await anext(self._subscription)
            if event is None:
                await _send_chunk(send, _KEEP_ALIVE)
                continue
            chunk = _encode(event)
            if (dropped := self._subscription.dropped) > told:
                chunk = _frame("dropped", {"count": dropped - told}) + chunk
                told = dropped
            await _send_chunk(send, chunk)


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _encode(event: FeedEvent) -> bytes:
    if isinstance(event, Reply):
        return _frame("reply", views.reply(event.message))
    view: dict[str, object] = {"session_key": str(event.session_key), "turn_id": event.turn_id}
    match event:
        case Activity():
            return _frame(
                "phase", view | {"phase": event.phase, "detail": clean_text(event.detail)}
            )
        case Delta():
            return _frame("delta", view | {"text": clean_text(event.text)})
        case Reset():
            return _frame("reset", view)


def _frame(name: str, data: views.View) -> bytes:
    """One event; JSON has no line breaks of its own, so its data is one line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
