"""One conversation as its client sees it: posts nothing twice, and misses no reply.

The event stream is for the eye: what it drops is gone. Replies are read from the outbox, after the
last one seen, whenever the stream hints that there is one, and after each reconnection.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from typing import Protocol

import anyio

from teaagentd.cli.client import Client, Event, NoDaemon, Posted, Reply
from teaagentd.types import Phase, SessionKey

_RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a daemon that went away; the last one repeats."""

_ANSWERS_KEPT = 1000
"""Answers remembered for a message whose acceptance is heard of after them."""


class View(Protocol):
    """Where a conversation is shown. No method blocks or raises."""

    def phase(self, turn_id: str, phase: str, detail: str) -> None:
        """What a turn is busy with now; `done` when it is over."""

    def delta(self, turn_id: str, text: str) -> None:
        """A piece of an answer, as it streams."""

    def reset(self, turn_id: str) -> None:
        """What was streamed of the present answer is void: it starts over."""

    def reply(self, reply: Reply) -> None:
        """A text as it was committed. It replaces what was streamed of it."""

    def connection(self, connected: bool) -> None:
        """The daemon went away, or is there again."""


class Conversation:
    """The client of one session. `follow` must run while answers are awaited."""

    def __init__(
        self,
        client: Client,
        key: SessionKey,
        view: View,
        *,
        seen: int,
        patience_s: float | None = None,
    ) -> None:
        """`seen` is the id of the last reply that need not be shown. A daemon that is away for
        longer than `patience_s` ends the conversation with `NoDaemon`; None waits for ever."""
        self.key = key
        self.seen = seen
        self._client = client
        self._view = view
        self._patience_s = patience_s
        self._lost_at: float | None = None
        self._answers: OrderedDict[int, Reply] = OrderedDict()
        self._changed = anyio.Event()
        self._following = anyio.Event()

    async def post(self, content: str, external_id: str | None = None) -> Posted:
        """Have a message accepted, however often the daemon goes away meanwhile. Raises
        `Refused` if it will not have it."""
        external_id = external_id or f"terminal-{uuid.uuid4().hex}"
        await self._following.wait()
        attempt = 0
        while True:
            try:
                return await self._client.post(self.key, content, external_id=external_id)
            except NoDaemon:
                await self._pause(attempt)
                attempt += 1

    async def answer(self, posted: Posted) -> Reply:
        """The text that answers a message; waits for it without a limit of its own."""
        while posted.id not in self._answers:
            await self._changed.wait()
        return self._answers[posted.id]

    async def follow(self) -> None:
        """Show what comes, until cancelled."""
        attempt = 0
        while True:
            try:
                async with self._client.events(self.key) as events:
                    await self._catch_up()
                    if attempt:
                        self._view.connection(True)
                    attempt, self._lost_at = 0, None
                    self._following.set()
                    async for event in events:
                        await self._take(event)
            except NoDaemon:
                pass
            if not attempt:
                self._view.connection(False)
            await self._pause(attempt)
            attempt += 1

    async def _pause(self, attempt: int) -> None:
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if self._patience_s is not None and now - self._lost_at > self._patience_s:
            raise NoDaemon(self._client.socket)
        await anyio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])

    async def _take(self, event: Event) -> None:
        turn_id = event.text("turn_id")
        match event.name:
            case "delta":
                self._view.delta(turn_id, event.text("text"))
            case "reset":
                self._view.reset(turn_id)
            case "reply":
                # Not beyond it: what streamed of the next one is still to come, and goes first.
                reply_id = event.data.get("id")
                await self._catch_up(reply_id if isinstance(reply_id, int) else None)
            case "dropped":
                await self._catch_up()
            case "phase":
                phase = event.text("phase")
                if phase == Phase.DONE:
                    await self._catch_up()
                self._view.phase(turn_id, phase, event.text("detail"))

    async def _catch_up(self, upto: int | None = None) -> None:
        """Show each reply after the last one seen, in order, up to the one with the id `upto`."""
        while upto is None or self.seen < upto:
            found = await self._client.replies(self.key, after=self.seen)
            replies = [reply for reply in found if upto is None or reply.id <= upto]
            if not replies:
                return
            for reply in replies:
                self.seen = reply.id
                self._answers.update(dict.fromkeys(reply.message_ids, reply))
                self._view.reply(reply)
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)
            self._changed.set()
            self._changed = anyio.Event()


async def last_reply_id(client: Client, key: SessionKey) -> int:
    """The id of the newest reply of a session, 0 if it has none."""
    last = 0
    while replies := await client.replies(key, after=last):
        last = replies[-1].id
    return last
