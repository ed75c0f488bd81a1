"""Spending: the caps on what requests to models may come to, asked before each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

import anyio
import structlog

from teaagentd.abc import Clock, SpendingGate
from teaagentd.errors import SpendingRefused, StoreError
from teaagentd.providers.prices import CENT
from teaagentd.store import Store
from teaagentd.store.values import Level, Limit, LimitScope, Payer
from teaagentd.types import Attempt, Planned, SessionKey

log = structlog.get_logger()

WARN_AT = 0.8
"""The part of a cap at which its owner is warned."""
_SCOPES: tuple[LimitScope, ...] = ("turn", "session", "day", "month")
_SPAN = {
    "turn": "this turn",
    "session": "this conversation",
    "day": "this day",
    "month": "this month",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """What may be spent, in US cents and in tokens; None is no cap. 0 allows nothing."""

    turn_cents: float | None = None
    session_cents: float | None = None
    day_cents: float | None = None
    month_cents: float | None = None
    turn_tokens: int | None = None
    session_tokens: int | None = None
    day_tokens: int | None = None
    month_tokens: int | None = None
    allow_unknown_prices: frozenset[str] = frozenset()
    """The models that may be used under a cap in cents although nobody knows their price."""
    zone: tzinfo | None = None
    """Whose days and months count; None is the machine's own."""

    def limits(self, now_ms: int) -> tuple[Limit, ...]:
        """The caps that are set, as they stand at that time."""
        return tuple(self._limits(now_ms))

    def _limits(self, now_ms: int) -> Iterator[Limit]:
        for scope in _SCOPES:
            since_ms, until_ms = _period(scope, now_ms, self.zone)
            cents: float | None = getattr(self, f"{scope}_cents")
            tokens: int | None = getattr(self, f"{scope}_tokens")
            if cents is not None:
                most = round(cents * CENT)
                yield Limit(
                    scope=scope, unit="cost", most=most, since_ms=since_ms, until_ms=until_ms
                )
            if tokens is not None:
                yield Limit(
                    scope=scope, unit="tokens", most=tokens, since_ms=since_ms, until_ms=until_ms
                )

    def need_price_of(self, model: str) -> bool:
        """Whether the model may be used only if its price is known."""
        return self.in_cents is not None and model not in self.allow_unknown_prices

    @property
    def in_cents(self) -> str | None:
        """The first cap that needs prices to be kept; None if there is none."""
        for scope in _SCOPES:
            if getattr(self, f"{scope}_cents") is not None:
                return f"budget.{scope}_cents"
        return None


_TITLE = {"session": "This conversation", "day": "Today", "month": "This month"}

OnLevels = Callable[[Sequence[Level], Payer], None]


class Spending:
    """Asked by all sessions at once. What is set aside and spent is in the store, and outlasts the
    process; this object knows the caps, and wakes who waits for room under one of them."""

    def __init__(self, *, store: Store, clock: Clock, caps: Caps | None = None) -> None:
        self.caps = caps or Caps()
        """May be replaced at any time."""
        self.on_levels: OnLevels = lambda levels, payer: None
        """Told how far each cap is used up, whenever one was asked for."""
        self._store = store
        self._clock = clock
        self._changed = anyio.Event()
        self._owed: list[Attempt] = []
        """What ended and is not in the books yet, as the store failed."""
        store.books.on_booked = self._wake

    def gate(self, key: SessionKey | None, turn_id: str | None = None) -> SpendingGate:
        """The gate for the requests of one turn, or of what is done for a session beside them."""
        return _Gate(self, Payer(turn_id=turn_id, key=key))

    async def levels(self, payer: Payer | None = None) -> tuple[Level, ...]:
        """How far the caps of the day and the month are used up now; with `payer` those of its
        turn and conversation too."""
        limits = self.caps.limits(self._clock.now_ms())
        if payer is None:
            limits = tuple(one for one in limits if one.scope in ("day", "month"))
        return await self._store.books.levels(limits, payer or Payer()) if limits else ()

    def day_begins_ms(self, days_ago: int = 0) -> int:
        """When the owner's day began that was so many days ago; milliseconds since the epoch."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, self.caps.zone)
        then = now.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return round((then - timedelta(days=days_ago)).timestamp() * 1000)

    async def describe(self, key: SessionKey) -> str:
        """What `/usage` answers: what a conversation, the day and the month came to."""
        now_ms = self._clock.now_ms()
        every = Caps(
            session_cents=0,
            session_tokens=0,
            day_cents=0,
            day_tokens=0,
            month_cents=0,
            month_tokens=0,
            zone=self.caps.zone,
        )
        sums = await self._store.books.levels(every.limits(now_ms), Payer(key=key))
        caps = {(one.scope, one.unit): one for one in self.caps.limits(now_ms)}
        lines: dict[LimitScope, list[str]] = {}
        for level in sums:
            limit = level.limit
            cap = caps.get((limit.scope, limit.unit))
            of = f" of {amount(cap, cap.most, bare=True)}" if cap is not None else ""
            lines.setdefault(limit.scope, []).append(f"{amount(limit, level.spent)}{of}")
        return "\n".join(f"{_TITLE[scope]}: {', '.join(said)}" for scope, said in lines.items())

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def reserve(self, planned: Planned, ended: Sequence[Attempt], payer: Payer) -> int:
        """See `SpendingGate`."""
        caps = self.caps
        if planned.cost is None and caps.need_price_of(planned.model):
            raise SpendingRefused(
                f"The price of {planned.model} at {planned.provider} is not known, so "
                f"{caps.in_cents} cannot be kept. Set its input_price and output_price, or "
                "name it in budget.allow_unknown_prices.",
                provider=planned.provider,
            )
        waited = False
        while True:
            changed = self._changed
            limits = caps.limits(self._clock.now_ms())
            made = await self._store.books.reserve(planned, ended, payer, limits)
            if made.levels:
                self.on_levels(made.levels, payer)
            if made.id is not None:
                return made.id
            if made.refused is not None:
                log.warning("spending_refused", cap=cap_name(made.refused.limit))
                raise SpendingRefused(
                    self._refusal(made.refused, planned), provider=planned.provider
                )
            if not waited:
                log.info("spending_waits", session=str(payer.key))
            waited = True
            await changed.wait()

    async def settle(self, ended: Sequence[Attempt] = ()) -> None:
        """See `SpendingGate`. Without `ended`, book what could not be booked before."""
        self._owed += ended
        owed = tuple(self._owed)
        if not owed:
            return
        try:
            await self._store.books.settle(owed)
        except StoreError as error:
            log.error("requests_not_booked", error=str(error), count=len(owed))
        else:
            self._owed = [one for one in self._owed if one not in owed]

    def _refusal(self, level: Level, planned: Planned) -> str:
        limit = level.limit
        left = max(limit.most - level.spent, 0)
        text = f"The cap {cap_name(limit)} = {amount(limit, limit.most, bare=True)} is "
        if left == 0:
            text += "reached"
        else:
            text += f"too near for this request ({amount(limit, left)} left)"
        spent = f"{amount(limit, level.spent)} spent for {_SPAN[limit.scope]}"
        return f"{text}: {spent}. {self._reset(limit)}"

    def _reset(self, limit: Limit) -> str:
        if limit.scope == "turn":
            return "It begins anew with your next message."
        if limit.scope == "session":
            return "It begins anew with /new."
        when = datetime.fromtimestamp(limit.until_ms / 1000, self.caps.zone)
        if self.caps.zone is None:
            when = when.astimezone()
        return f"It begins anew on {when:%Y-%m-%d} at {when:%H:%M} ({when.tzname()})."


@dataclass(frozen=True, slots=True)
class _Gate:
    spending: Spending
    payer: Payer

    async def reserve(self, planned: Planned, ended: Sequence[Attempt]) -> int:
        return await self.spending.reserve(planned, ended, self.payer)

    async def settle(self, ended: Sequence[Attempt]) -> None:
        await self.spending.settle([one for one in ended if one.reservation is not None])


def cap_name(limit: Limit) -> str:
    """Its key in the configuration."""
    return f"budget.{limit.scope}_{'cents' if limit.unit == 'cost' else 'tokens'}"


def amount(limit: Limit, count: int, *, bare: bool = False) -> str:
    """So much of what `limit` counts, as it is said; `bare` without its unit."""
    if limit.unit == "tokens":
        return f"{count}" if bare else f"{count:,} tokens"
    cents = f"{count / CENT:.2f}".rstrip("0").rstrip(".")
    return cents if bare else f"{cents} cents"


def _period(scope: LimitScope, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    """When the period of `scope` that `now_ms` is in begins and ends."""
    if scope not in ("day", "month"):
        return 0, 0
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    first = now.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if scope == "day":
        following = first + timedelta(days=1)
    else:
        first = first.replace(day=1)
        following = (first + timedelta(days=32)).replace(day=1)
    return round(first.timestamp() * 1000), round(following.timestamp() * 1000)
