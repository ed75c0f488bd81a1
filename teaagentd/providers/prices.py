"""What requests cost: as the configuration states, as the vendors' price lists say, or nothing."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import anyio.to_thread
import structlog

from teaagentd.types import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

log = structlog.get_logger()

DOLLAR: Final = 1_000_000_000
"""Costs are whole billionths of a US dollar."""
CENT: Final = DOLLAR // 100
_LIST_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_SOLD_BY_THEIR_MAKER = ("openai", "anthropic", "google", "x-ai")
"""Whose models nobody can serve at home: a server on this machine that has them passes requests
on."""


class Prices(Protocol):
    """The prices of one model at one provider."""

    async def ready(self) -> None:
        """Look them up, if that is still to be done. Never fails: what is not found is unknown."""

    def cost(self, usage: Usage, at_ms: int) -> int | None:
        """What a request at that time came to, in billionths of a US dollar; None if unknown."""


class Unknown:
    """Nobody knows them."""

    async def ready(self) -> None: ...

    def cost(self, usage: Usage, at_ms: int) -> int | None:
        return None


class Free:
    """A model that runs on this machine."""

    async def ready(self) -> None: ...

    def cost(self, usage: Usage, at_ms: int) -> int | None:
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """Prices of the configuration, in US dollars for a million tokens. What is read from or
    written to a cache costs as much as other input, unless it has a price of its own."""

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None

    async def ready(self) -> None: ...

    def cost(self, usage: Usage, at_ms: int) -> int | None:
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        # A price for a million tokens in dollars is one for a token in thousands of billionths.
        return round(
            1000
            * (
                max(usage.input_tokens - cached - written, 0) * self.input
                + cached * (self.input if self.cached is None else self.cached)
                + written * (self.input if self.cache_write is None else self.cache_write)
                + usage.output_tokens * self.output
            )
        )


class Listed:
    """Prices of the list that comes with the package genai-prices, which is read when first
    needed: it takes 0.15 s and 29 MB."""

    def __init__(self, kind: str, model: str, base_url: str | None) -> None:
        self._model = model
        self._url = base_url or _LIST_URLS.get(kind, "")
        self._at_home = is_this_machine(self._url)
        self._looked_up = False
        self._found: tuple[Provider, ModelInfo] | None = None

    async def ready(self) -> None:
        if not self._looked_up:
            self._found = await anyio.to_thread.run_sync(self._look_up)
            self._looked_up = True

    def cost(self, usage: Usage, at_ms: int) -> int | None:
        if self._found is None:
            return 0 if self._at_home and self._looked_up else None
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        provider, model = self._found
        when = datetime.fromtimestamp(at_ms / 1000, UTC)
        found = _priced(usage, provider, model, when)
        return None if found is None else int((found * DOLLAR).to_integral_value())

    def _look_up(self) -> tuple[Provider, ModelInfo] | None:
        from genai_prices.data_snapshot import get_snapshot

        snapshot = get_snapshot()
        vendors = _SOLD_BY_THEIR_MAKER if self._at_home else (None,)
        for vendor in vendors:
            url = None if vendor else self._url
            name = self._model.rpartition("/")[2] if vendor else self._model
            try:
                return snapshot.find_provider_model(name, None, vendor, url)
            except LookupError:
                continue
        return None


def _priced(usage: Usage, provider: Provider, model: ModelInfo, when: datetime) -> Decimal | None:
    from genai_prices import Usage as ListUsage

    listed: ModelPrice = model.get_prices(when)
    if listed.input_mtok is None and listed.output_mtok is None and not model.id.endswith(":free"):
        return None
    counted = ListUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens or 0,
        cache_write_tokens=usage.cache_write_tokens or 0,
    )
    return model.calc_price(counted, provider, genai_request_timestamp=when).total_price


def is_this_machine(url: str) -> bool:
    """Whether a server's address is one of this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
