"""Chain: several providers in order, each left alone while it rests after a failure.

It decides who is asked next, and asks nobody itself: it neither waits nor retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Literal

import structlog

from teaagentd.abc import Clock, LLMAdapter, SystemClock
from teaagentd.errors import (
    AuthenticationFailed,
    ModelMissing,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers.options import ModelOptions
from teaagentd.providers.prices import Prices, Unknown

log = structlog.get_logger()

_SHORT_S = 10.0
"""The first rest after a passing failure; each further one in a row is twice as long."""
_LONGEST_SHORT_S = 300.0
_LONG_S = 3600.0
"""The rest of a key that is refused or whose credit is used up, where no time is given."""
_MISSING_S = 300.0
_EARLY_S = 0.05
"""Timers may ring so much too early."""

Firmness = Literal["short", "long", "stated"]
"""How a rest binds: `stated` by the server is kept to its end; `long` is broken only where there
is nobody else at all; `short` where nobody else has answered."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Link:
    """One adapter with one key. Links of the same `provider` reach the same server."""

    adapter: LLMAdapter
    provider: str
    label: str
    """As people are told of it."""
    name: str = ""
    """By which it is chosen; links that differ in their key alone share it."""
    on_request: bool = False
    """Whether it is asked only where it was chosen."""
    options: ModelOptions = field(default_factory=ModelOptions)
    prices: Prices = field(default_factory=Unknown)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """Why a link is left alone, and until when on the monotonic clock."""

    until: float
    firmness: Firmness
    error: ProviderError


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkStatus:
    """One link as `status` shows it. `rests_s` is None while it may be asked."""

    label: str
    name: str
    model: str
    on_request: bool
    rests_s: float | None
    reason: str | None


class Chain:
    """The links in the order in which they are asked; shared by all sessions."""

    def __init__(self, links: Iterable[Link], *, clock: Clock | None = None) -> None:
        self.links = tuple(links)
        assert self.links, "a chain has at least one link"
        self._clock = clock or SystemClock()
        self._rests: dict[Link, Rest] = {}
        self._failures: dict[Link, int] = {}

    @classmethod
    def of(cls, adapter: LLMAdapter, *, clock: Clock | None = None) -> Chain:
        """A chain of one."""
        link = Link(adapter=adapter, provider=adapter.name, label=adapter.name)
        return cls([link], clock=clock)

    def first(self, choice: str | None = None) -> Link:
        """Who would be asked now, where `choice` was chosen."""
        return self.next(frozenset(), choice) or self.links[0]

    def next(self, tried: Set[Link], choice: str | None = None) -> Link | None:
        """Who is asked next when those `tried` have failed; None when nobody may be. Those with
        the name `choice` come first."""
        found: dict[Firmness, Link] = {}
        for link in self._in_order(choice):
            if link in tried:
                continue
            rest = self._rest(link)
            if rest is None:
                return link
            found.setdefault(rest.firmness, link)
        if "short" in found:
            return found["short"]
        return None if tried else found.get("long")

    def _in_order(self, choice: str | None) -> Iterable[Link]:
        if choice is None:
            return (link for link in self.links if not link.on_request)
        chosen = [link for link in self.links if link.name == choice]
        others = [link for link in self.links if link.name != choice and not link.on_request]
        return (*chosen, *others)

    def failed(self, link: Link, error: ProviderError) -> frozenset[Link]:
        """Note that `link` did not answer. Returns those that need not be tried for the same
        request: itself, and where its server is at fault, all that reach that server."""
        server_s_fault = isinstance(error, ProviderUnavailable | ModelMissing)
        alike = [one for one in self.links if one.provider == link.provider]
        concerned = alike if server_s_fault else [link]
        self._failures[link] = self._failures.get(link, 0) + 1
        rest = self._rest_after(error, self._failures[link])
        if rest is not None:
            for one in concerned:
                self._rests[one] = rest
            wait_s = rest.until - self._clock.monotonic()
            log.info("provider_rests", provider=link.label, wait_s=round(wait_s, 1))
        return frozenset(concerned)

    def worked(self, link: Link) -> None:
        """Note that `link` answered."""
        if self._failures or self._rests:
            self._failures.pop(link, None)
            self._rests.pop(link, None)

    def refusal(self) -> ProviderError:
        """What is said when nobody may be asked: the error of whoever may be asked first, with
        the time until then. No request was made for it."""
        asked = (link for link in self.links if not link.on_request)
        found = [rest for rest in map(self._rest, asked) if rest is not None]
        rest = min(found, key=lambda one: one.until)
        kind = type(rest.error)
        error = kind(str(rest.error), provider=rest.error.provider, status=rest.error.status)
        if isinstance(error, RateLimited | QuotaExhausted | ProviderUnavailable):
            error.retry_after_s = rest.until - self._clock.monotonic()
        return error

    def status(self) -> tuple[LinkStatus, ...]:
        """Each link in order, and whether it rests."""
        now, shown = self._clock.monotonic(), []
        for link in self.links:
            rest = self._rest(link)
            shown.append(
                LinkStatus(
                    label=link.label,
                    name=link.name,
                    model=link.adapter.model,
                    on_request=link.on_request,
                    rests_s=None if rest is None else rest.until - now,
                    reason=None if rest is None else str(rest.error),
                )
            )
        return tuple(shown)

    async def warm(self) -> None:
        """Prepare the first link; the others are prepared when they are needed."""
        await self.links[0].adapter.warm()

    async def aclose(self) -> None:
        """Close every adapter. Idempotent."""
        for link in self.links:
            await link.adapter.aclose()

    def _rest(self, link: Link) -> Rest | None:
        rest = self._rests.get(link)
        if rest is not None and rest.until <= self._clock.monotonic() + _EARLY_S:
            del self._rests[link]
            return None
        return rest

    def _rest_after(self, error: ProviderError, failures: int) -> Rest | None:
        """The rest that `error` brings, the `failures`th in a row; None for a fault of the
        request."""
        stated: float | None = None
        if isinstance(error, RateLimited | QuotaExhausted | ProviderUnavailable):
            stated = error.retry_after_s
        firmness: Firmness = "short"
        if stated:
            wait_s, firmness = stated, "stated"
        elif isinstance(error, QuotaExhausted | AuthenticationFailed):
            wait_s, firmness = _LONG_S, "long"
        elif isinstance(error, RateLimited | ProviderUnavailable):
            wait_s = min(_SHORT_S * 2 ** min(failures - 1, 10), _LONGEST_SHORT_S)
        elif isinstance(error, ModelMissing) or (
            isinstance(error, RequestRefused) and error.status == 404
        ):
            wait_s = _MISSING_S
        else:
            return None
        return Rest(until=self._clock.monotonic() + wait_s, firmness=firmness, error=error)


def worth_another_pass(failures: Iterable[ProviderError]) -> ProviderError:
    """Of what the links of one pass came to, the error that decides what happens next: a passing
    one with the shortest wait, else the first."""
    failures = list(failures)
    passing = [one for one in failures if isinstance(one, ProviderUnavailable | RateLimited)]
    return min(passing, key=lambda one: one.retry_after_s or 0.0, default=failures[0])
