"""The message bus: accepted messages on their way in, durable before anyone is told of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import anyio

from teaagentd.commands import Command, parse_command
from teaagentd.errors import InvalidMessage, SenderRefused
from teaagentd.store import Store
from teaagentd.store.values import Accepted
from teaagentd.transcript import clean_message
from teaagentd.types import InboundMessage, SessionKey

CommandHandler = Callable[[Command, InboundMessage], Awaitable[Accepted]]


class MessageBus:
    """Publish on one side, wait and claim on the other.

    The inbox in the store is the queue. What is held here is only which ids of which key no
    turn has claimed yet, so that nobody has to poll for them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[SessionKey, list[int]] = {}
        self._claimed_early: set[int] = set()
        self._ready: dict[SessionKey, None] = {}
        self._arrival = anyio.Event()
        self._on_command: CommandHandler | None = None
        self.senders: Mapping[str, frozenset[str]] = {}
        """Who may speak, on each channel that is not open to everyone. Replaced, never changed."""
        self.newest_id = 0
        """The highest id accepted so far: what a direct turn takes as its place in the order."""

    async def load(self) -> None:
        """Take up what earlier runs accepted and did not claim. Called once, before `wait`."""
        for pending in await self._store.pending_keys():
            # One by one: meanwhile messages were accepted, and resumed turns took some in.
            for row_id in pending.ids:
                self._add(pending.key, row_id)

    def handle_commands(self, handler: CommandHandler) -> None:
        """Give `/stop` and its like to `handler`, outside the queue (T7)."""
        self._on_command = handler

    async def publish(self, message: InboundMessage) -> Accepted:
        """Accept `message` (T0); it is durable when this returns.

        A message whose external id was accepted before is a no-op that returns the first one.
        Raises `InvalidMessage`, `SenderRefused`, `BusFull`, `ExternalIdConflict` or
        `StoreUnavailable`; then nothing was kept and the sender must not be acknowledged.
        """
        _check(message)
        message = clean_message(message)
        allowed = self.senders.get(message.channel)
        if allowed is not None and message.sender_id not in allowed:
            raise SenderRefused(message.channel)
        if self._on_command is not None:
            command = parse_command(message.content)
            if command is not None:
                return await self._on_command(command, message)
        accepted = await self._store.accept(message)
        if not accepted.duplicate:
            self._add(accepted.session_key, accepted.id)
        return accepted

    async def wait(self) -> Sequence[SessionKey]:
        """The keys that got messages since the last call; waits until there is one."""
        await self._arrival.wait()
        self._arrival = anyio.Event()
        ready, self._ready = self._ready, {}
        return tuple(ready)

    def first_pending(self, key: SessionKey) -> int | None:
        """The oldest unclaimed message of `key`."""
        ids = self._pending.get(key)
        return ids[0] if ids else None

    def pending(self, key: SessionKey, *, upto: int | None = None) -> bool:
        """Whether messages wait for `key`, up to id `upto` where given."""
        first = self.first_pending(key)
        return first is not None and (upto is None or first <= upto)

    def claimed(self, key: SessionKey, ids: Iterable[int]) -> None:
        """A turn's transaction has claimed these, or a stop has closed them."""
        waiting = self._pending.get(key, [])
        for row_id in ids:
            index = bisect_left(waiting, row_id)
            if index < len(waiting) and waiting[index] == row_id:
                del waiting[index]
            else:
                # Committed and claimed before its publisher was told: `_add` leaves it out.
                self._claimed_early.add(row_id)
        if not waiting:
            self._pending.pop(key, None)

    def admit(self, accepted: Accepted) -> None:
        """Take in a row that was accepted behind the bus: a dead one, retried."""
        if not accepted.duplicate:
            self._add(accepted.session_key, accepted.id)

    def waiting(self, key: SessionKey, *, upto: int | None = None) -> Sequence[int]:
        """The unclaimed messages of `key`, as far as they are known here."""
        return [row_id for row_id in self._pending.get(key, ()) if upto is None or row_id <= upto]

    def forget(self, key: SessionKey, ids: Iterable[int]) -> None:
        """The store, asked after these were known, has none of them pending. Without this a key
        would be kicked for ever for a row that is not there."""
        gone = set(ids)
        left = [row_id for row_id in self._pending.get(key, ()) if row_id not in gone]
        if left:
            self._pending[key] = left
        else:
            self._pending.pop(key, None)

    def _add(self, key: SessionKey, row_id: int) -> None:
        self.newest_id = max(self.newest_id, row_id)
        if row_id in self._claimed_early:
            self._claimed_early.discard(row_id)
            return
        waiting = self._pending.setdefault(key, [])
        index = bisect_left(waiting, row_id)
        if index == len(waiting) or waiting[index] != row_id:
            waiting.insert(index, row_id)
        self._announce(key)

    def _announce(self, key: SessionKey) -> None:
        self._ready[key] = None
        self._arrival.set()


def _check(message: InboundMessage) -> None:
    """Refuse what no turn could ever answer; the fields come from outside, whatever their type."""
    for field in ("channel", "chat_id", "content"):
        if not isinstance(getattr(message, field), str):
            raise InvalidMessage(field, "must be text")
    if not message.channel:
        raise InvalidMessage("channel", "must not be empty")
    if not message.content.strip() and not message.attachments:
        raise InvalidMessage("content", "must not be blank")
