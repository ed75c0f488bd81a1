"""Faults made on purpose, each put into the daemon of a process of its own: a simulation that does
not find them proves nothing."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from teaagentd.agent.budget import Caps
from teaagentd.core.bus import MessageBus
from teaagentd.core.gate import Gate, Slot
from teaagentd.core.loop import Loop
from teaagentd.core.turn import Turn
from teaagentd.errors import StoreUnavailable
from teaagentd.store import Store, erasure, inbox, ledger, outbox, removal, retention
from teaagentd.store.values import Accepted
from teaagentd.types import InboundMessage, LLMMessage, Part


def accepts_what_is_not_kept() -> None:
    real = Store.accept

    async def accept(self: Store, message: InboundMessage) -> Accepted:
        try:
            return await real(self, message)
        except StoreUnavailable:
            return Accepted(
                id=random.randrange(10**6, 10**7), session_key=message.key, duplicate=False
            )

    Store.accept = accept  # type: ignore[method-assign]


def forgets_what_waits_at_a_restart() -> None:
    async def load(self: MessageBus) -> None:
        """Nothing."""

    MessageBus.load = load  # type: ignore[method-assign]


def keeps_a_slot() -> None:
    real = Slot.release

    def release(self: Slot) -> None:
        if random.random() < 0.95:
            real(self)

    Slot.release = release  # type: ignore[method-assign]


def takes_no_turns_for_a_key() -> None:
    async def own(self: Loop, lane: Any) -> None:
        lane.busy = True

    Loop._own = own  # type: ignore[method-assign]


def lets_more_work_than_may() -> None:
    def try_acquire(self: Gate) -> bool:
        self.held += 1
        return True

    Gate.try_acquire = try_acquire  # type: ignore[method-assign]


def hides_repeats() -> None:
    real = Store.start_part

    async def start_part(
        self: Store, outbound: int, index: int, *, idempotent: bool
    ) -> Part | None:
        part = await real(self, outbound, index, idempotent=idempotent)
        return None if part is None else replace(part, possible_repeat=False)

    Store.start_part = start_part  # type: ignore[method-assign]


def runs_calls_before_it_says_so() -> None:
    async def started(self: Turn, call: Any) -> None:
        self._running_calls.add(call.id)
        self.slot.call_opened()

    Turn.started = started  # type: ignore[method-assign]


def leaves_turns_open() -> None:
    async def close_in_time(self: Turn) -> None:
        """Nothing."""

    Turn.close_in_time = close_in_time  # type: ignore[method-assign]


def gives_ids_again() -> None:
    @contextmanager
    def ids_kept(connection: object) -> Iterator[None]:
        yield

    for module in (erasure, removal, retention):
        module.ids_kept = ids_kept  # type: ignore[attr-defined]


def claims_only_the_first() -> None:
    real = inbox.claim
    inbox.claim = (
        lambda connection, turn, rows: real(  # type: ignore[assignment]
            connection, turn, rows[:1]
        )
    )


def tells_a_message_twice() -> None:
    real = Turn._take_in

    def take_in(self: Turn, folded: Any) -> Any:
        messages = tuple(real(self, folded))
        return (*messages, *(replace(one, id=None) for one in messages[-1:]))

    Turn._take_in = take_in  # type: ignore[method-assign]


def answers_only_one() -> None:
    real = outbox.add

    def add(connection: Any, *, answers: Any, **more: Any) -> Any:
        return real(connection, answers=tuple(answers)[:1], **more)

    outbox.add = add  # type: ignore[assignment]


def hides_a_fold_from_the_model() -> None:
    real = Turn._take_in

    def take_in(self: Turn, folded: Any) -> tuple[LLMMessage, ...]:
        return tuple(real(self, folded))[1:]

    Turn._take_in = take_in  # type: ignore[method-assign]


def spends_without_a_cap() -> None:
    Caps.limits = lambda self, now_ms: ()  # type: ignore[method-assign]


def forgets_what_was_set_aside() -> None:
    def resolve(connection: sqlite3.Connection) -> int:
        return connection.execute("DELETE FROM reservations").rowcount

    ledger.resolve = resolve


BREAKS: Mapping[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        accepts_what_is_not_kept,
        forgets_what_waits_at_a_restart,
        keeps_a_slot,
        takes_no_turns_for_a_key,
        lets_more_work_than_may,
        hides_repeats,
        runs_calls_before_it_says_so,
        leaves_turns_open,
        gives_ids_again,
        claims_only_the_first,
        tells_a_message_twice,
        answers_only_one,
        hides_a_fold_from_the_model,
        spends_without_a_cap,
        forgets_what_was_set_aside,
    )
}
