"""Delivery: the outbox of one push channel, sent part by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio
import structlog
from anyio.abc import TaskGroup

from teaagentd.abc import Channel, Clock
from teaagentd.channels.parts import split
from teaagentd.channels.supervisor import is_ending
from teaagentd.errors import (
    ConfigError,
    DeliveryDelayed,
    DeliveryRefused,
    DeliveryUnknown,
    StoreError,
)
from teaagentd.store import Store
from teaagentd.store.values import Letter
from teaagentd.types import Part, Receipt

REPEAT_MARK = "(possible repeat) "
"""Stands before a part that may arrive a second time."""
_UNREADABLE_WAIT_S = 30.0
_LONGEST_SLEEP_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryLimits:
    """What bounds the delivery over one channel; times in seconds."""

    chats: int = 8
    """Chats that are sent to at once."""
    parts: int = 100
    """Parts of one text; a longer one is a dead letter."""
    send_s: float = 60.0
    """One send; after it the outcome is unknown."""
    longest_wait_s: float = 3600.0
    """A channel that asks for a longer wait makes a dead letter."""
    backoff_s: float = 1.0
    """The first wait after a failure that names none; doubled for each one that follows."""
    longest_backoff_s: float = 300.0
    unknown_outcomes: int = 10
    """In a row for one chat of a channel that can deduplicate; then a dead letter."""

    def backoff(self, failures: int) -> float:
        return min(self.backoff_s * 2.0 ** min(max(failures - 1, 0), 32), self.longest_backoff_s)


@dataclass(slots=True)
class _Chat:
    """A chat that has to wait, or whose last send failed."""

    resume_at: float = 0.0
    """On the monotonic clock."""
    delayed: bool = False
    """Whether the channel told it to wait."""
    failures: int = 0


Outcome: TypeAlias = Receipt | DeliveryRefused | DeliveryDelayed | DeliveryUnknown


class Delivery:
    """Sends what the outbox holds for one channel, oldest first.

    Parts of one chat go one at a time, in order; several chats at once. A chat that is told to
    wait holds up no other; if a second one is told so meanwhile, the wait is the channel's, and
    one chat at a time tries again after it. Whatever the channel raises, delivery goes on.
    """

    def __init__(
        self,
        *,
        store: Store,
        channel: Channel,
        clock: Clock,
        limits: DeliveryLimits,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called whenever `unsettled` may have changed; it must not block."""
        if channel.limit < 1:
            raise ConfigError(
                f"channel {channel.name} says its parts hold {channel.limit} characters"
            )
        self._store = store
        self._channel = channel
        self._clock = clock
        self._limits = limits
        self._on_change = on_change
        self._wake = anyio.Event()
        self._kicked = True
        self._finishing = False
        self._reading = False
        self._busy: set[str] = set()
        self._chats: dict[str, _Chat] = {}
        self._ready = 0
        self._resume_at = 0.0
        self._pauses = 0

    @property
    def unsettled(self) -> int:
        """Chats that are being sent to or could be at once, at least one while the outbox has
        yet to be looked at; chats that must wait do not count."""
        return max(len(self._busy) + self._ready, 1 if self._reading or self._kicked else 0)

    @property
    def paused_s(self) -> float:
        """How long the whole channel still waits, in seconds; 0 if it does not."""
        return max(self._resume_at - self._clock.monotonic(), 0.0)

    def kick(self) -> None:
        """Look at the outbox again: something was added, or a wait may be over."""
        self._kicked = True
        self._wake.set()

    def finish(self) -> None:
        """Begin no further send; what is being sent goes on."""
        self._finishing = True

    @property
    def sending(self) -> bool:
        """Whether a chat is being sent to."""
        return bool(self._busy)

    async def run(self) -> None:
        """Deliver until cancelled. A send that is cut off leaves its part's outcome unknown."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._wake = anyio.Event()
                wait_s = await self._start_due(tasks)
                self._on_change()
                # A long wait is cut so that a machine that slept meanwhile notices.
                with anyio.move_on_after(None if wait_s is None else min(wait_s, _LONGEST_SLEEP_S)):
                    await self._wake.wait()

    async def _start_due(self, tasks: TaskGroup) -> float | None:
        """Start a task for each chat whose oldest letter may go; the seconds until another may,
        None if nothing waits."""
        self._kicked = False
        self._ready = 0
        if self.paused_s or self._finishing:
            return self.paused_s or None
        # The end of a chat that is busy now kicks again; what is read of it may be out of date.
        skipped = set(self._busy)
        self._reading = True
        try:
            letters = await self._store.undelivered(self._channel.name)
        except StoreError as error:
            log.error("outbox_unreadable", channel=self._channel.name, error=str(error))
            return _UNREADABLE_WAIT_S
        finally:
            self._reading = False
        by_chat: dict[str, list[Letter]] = {}
        for letter in letters:
            by_chat.setdefault(letter.outbound.address.chat_id, []).append(letter)
        self._chats = {name: chat for name, chat in self._chats.items() if name in by_chat}
        waits: list[float] = []
        due: list[tuple[int, int, str]] = []
        for name, queue in by_chat.items():
            wait_s = self._wait_s(name, queue[0])
            if wait_s > 0:
                waits.append(wait_s)
            elif name not in skipped:
                due.append((self._failures(name), queue[0].outbound.id, name))
        room = (1 if self._pauses else self._limits.chats) - len(self._busy)
        for _, _, name in sorted(due)[: max(room, 0)]:
            self._busy.add(name)
            tasks.start_soon(self._serve, name, by_chat[name])
        self._ready = len(due) - max(min(room, len(due)), 0)
        return min(waits, default=None)

    def _failures(self, name: str) -> int:
        chat = self._chats.get(name)
        return chat.failures if chat else 0

    def _wait_s(self, name: str, head: Letter) -> float:
        chat = self._chats.get(name)
        if chat is None:
            # First sight of it since the start: the wall clock may have jumped since.
            left_s = (head.not_before - self._clock.now_ms()) / 1000
            if left_s <= 0:
                return 0.0
            chat = _Chat(
                resume_at=self._clock.monotonic() + min(left_s, self._limits.longest_wait_s)
            )
            self._chats[name] = chat
        return chat.resume_at - self._clock.monotonic()

    async def _serve(self, name: str, letters: Iterable[Letter]) -> None:
        """Send one chat's letters in order, until one has to wait."""
        try:
            for letter in letters:
                if self._finishing or not await self._deliver(letter):
                    break
        except StoreError as error:
            log.error("delivery_not_recorded", channel=self._channel.name, error=str(error))
            self._back_off(name, None)
        except Exception:
            # One letter must never end the delivery of all.
            log.exception("delivery_failed", channel=self._channel.name)
            self._back_off(name, None)
        finally:
            self._busy.discard(name)
            self.kick()

    async def _deliver(self, letter: Letter) -> bool:
        """Send what is unsent of one letter. True: it is over, sent or dead."""
        message = letter.outbound
        name = message.address.chat_id
        count = len(letter.parts)
        pending = [part.index for part in letter.parts if part.state != "sent"]
        if not letter.parts:
            contents = self._cut(message.content)
            if not 0 < len(contents) <= self._limits.parts:
                problem = f"too long for the channel: {len(contents)} parts"
                await self._bury(letter, problem if contents else "there is no text to send")
                return True
            await self._store.freeze(message.id, contents)
            count = len(contents)
            pending = list(range(count))
        for index in pending:
            if self._finishing:
                return False
            part = await self._store.start_part(
                message.id, index, idempotent=self._channel.idempotent
            )
            if part is None:
                states = {part.index: part.state for part in letter.parts}
                if states.get(index) == "sending":
                    self._log_dead(letter, f"the outcome of part {index + 1} is unknown for good")
                return True
            outcome = await self._send(part)
            if isinstance(outcome, Receipt):
                await self._record(message.id, index, outcome)
                self._succeeded(name)
                continue
            if isinstance(outcome, DeliveryDelayed):
                return await self._delayed(letter, index, outcome)
            if isinstance(outcome, DeliveryUnknown):
                return await self._unknown(letter, index, outcome)
            await self._bury(letter, f"refused at part {index + 1} of {count}: {outcome}")
            return True
        return True

    def _cut(self, content: str) -> list[str]:
        """The parts of a text; room is left for the mark of a possible repeat. Blank parts are
        left out, since channels refuse them."""
        limit = self._channel.limit
        if not self._channel.idempotent and limit >= 4 * len(REPEAT_MARK):
            limit -= len(REPEAT_MARK)
        return [part for part in split(content, limit) if part.strip()]

    async def _send(self, part: Part) -> Outcome:
        """What became of one send. Only cancellation from outside gets through."""
        if part.possible_repeat and len(part.content) + len(REPEAT_MARK) <= self._channel.limit:
            part = replace(part, content=REPEAT_MARK + part.content)
        try:
            with anyio.move_on_after(self._limits.send_s):
                receipt = await self._channel.send(part)
                return receipt if isinstance(receipt, Receipt) else Receipt()
        except (DeliveryRefused, DeliveryDelayed, DeliveryUnknown) as error:
            return error
        except BaseException as error:
            # An adapter may raise anything, cancellation and exits included; whether it had
            # sent the part before, nobody knows.
            if is_ending(error):
                raise
            log.error("channel_send_raised", channel=part.address.channel, exc_info=error)
            return DeliveryUnknown(f"the channel raised {type(error).__name__}")
        return DeliveryUnknown(f"no answer within {self._limits.send_s:g} s")

    async def _record(self, outbound_id: int, index: int, receipt: Receipt) -> None:
        """Write down that a part was sent; the store sees to it in spite of a cancellation. A
        passing failure of the disk must not lead to a second send, so it is tried again."""
        failures = 0
        while True:
            try:
                await self._store.finish_part(outbound_id, index, receipt)
                return
            except StoreError as error:
                failures += 1
                log.error("receipt_not_recorded", outbound_id=outbound_id, error=str(error))
                await anyio.sleep(self._limits.backoff(failures))

    async def _delayed(self, letter: Letter, index: int, error: DeliveryDelayed) -> bool:
        asked_s = error.wait_s
        if asked_s is not None and not 0 <= asked_s < math.inf:
            asked_s = None
        if asked_s is not None and asked_s > self._limits.longest_wait_s:
            await self._bury(
                letter, f"told to wait {asked_s:g} s; sent up to part {index}, the rest is kept"
            )
            return True
        name = letter.outbound.address.chat_id
        wait_s = self._back_off(name, asked_s)
        until_ms = self._clock.now_ms() + math.ceil(wait_s * 1000)
        await self._store.delay(letter.outbound.id, index, until_ms=until_ms)
        log.warning("delivery_delayed", wait_s=round(wait_s, 3), **self._fields(letter))
        self._chats[name].delayed = True
        now = self._clock.monotonic()
        told = [chat.resume_at for chat in self._chats.values() if chat.delayed]
        told = [resume_at for resume_at in told if resume_at > now]
        if len(told) > 1:
            self._pause(min(told))
        return False

    def _pause(self, until: float) -> None:
        if not self.paused_s:
            self._pauses += 1
            log.warning("channel_paused", channel=self._channel.name)
        self._resume_at = max(self._resume_at, until)

    async def _unknown(self, letter: Letter, index: int, error: DeliveryUnknown) -> bool:
        """Leave the part marked as sending: starting it again is what counts the repeat."""
        name = letter.outbound.address.chat_id
        log.warning(
            "delivery_outcome_unknown", part=index, reason=str(error), **self._fields(letter)
        )
        self._back_off(name, None)
        if self._channel.idempotent and self._failures(name) >= self._limits.unknown_outcomes:
            await self._bury(letter, f"the outcome of part {index + 1} stays unknown: {error}")
            return True
        return False

    def _back_off(self, name: str, wait_s: float | None) -> float:
        """Make a chat wait as long as the channel asks, or longer after each failure in a row."""
        chat = self._chats.setdefault(name, _Chat())
        chat.failures += 1
        chat.delayed = False
        if wait_s is None:
            wait_s = self._limits.backoff(max(chat.failures, self._pauses))
        chat.resume_at = self._clock.monotonic() + wait_s
        return wait_s

    def _succeeded(self, name: str) -> None:
        self._chats.pop(name, None)
        self._pauses = 0

    async def _bury(self, letter: Letter, reason: str) -> None:
        self._chats.pop(letter.outbound.address.chat_id, None)
        await self._store.refuse(letter.outbound.id, reason)
        self._log_dead(letter, reason)

    def _log_dead(self, letter: Letter, reason: str) -> None:
        self._chats.pop(letter.outbound.address.chat_id, None)
        log.error("letter_dead", reason=reason, **self._fields(letter))

    def _fields(self, letter: Letter) -> dict[str, str | int | None]:
        message = letter.outbound
        return {
            "channel": self._channel.name,
            "outbound_id": message.id,
            "session": str(message.session_key),
        }
