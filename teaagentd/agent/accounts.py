"""Account: what the requests of one run came to, and who is asked before each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from teaagentd.abc import SpendingGate
from teaagentd.errors import ProviderError
from teaagentd.providers.chain import Link
from teaagentd.transcript import PICTURE_TOKENS, estimate_request_tokens, estimate_tokens
from teaagentd.types import Attempt, LLMRequest, LLMResponse, Picture, Planned, Usage

_MOST_OUTPUT = 16_384
"""Tokens of an answer that nothing bounds."""
_FASTEST = 250
"""Tokens a second: what a server may have written by the time that its answer broke off."""


@dataclass(kw_only=True, slots=True)
class Account:
    """One run's. `attempts` are the requests that ended and that its owner has not booked."""

    attempts: list[Attempt] = field(default_factory=list)
    gate: SpendingGate | None = None
    choice: str | None = None
    """The model that is asked first, by its name in the chain; None is as configured."""
    prompt_tokens: int | None = None
    """What the next request comes to, as far as that is known better than by an estimate."""

    async def settle(self) -> None:
        """Book what ended, as far as something was set aside for it."""
        if self.gate is not None:
            await self.gate.settle(self.attempts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One request, with what was set aside for it."""

    planned: Planned
    request: LLMRequest
    reservation: int | None


async def place(account: Account, link: Link, request: LLMRequest, started_at: int) -> Order:
    """Set aside what `request` may cost, before it is made. Raises `SpendingRefused`."""
    await link.prices.ready()
    tokens = account.prompt_tokens
    if account.gate is None:
        # Nobody is asked, and the whole history need not be looked at.
        tokens = tokens or 0
    elif tokens is None:
        tokens = _estimate(request)
    most = Usage(input_tokens=tokens, output_tokens=request.max_output_tokens or _MOST_OUTPUT)
    planned = Planned(
        provider=link.adapter.name,
        model=link.adapter.model,
        purpose=request.purpose,
        input_tokens=tokens,
        output_tokens=most.output_tokens or 0,
        cost=link.prices.cost(most, started_at),
        input_cost=link.prices.cost(replace(most, output_tokens=0), started_at),
        started_at=started_at,
    )
    reservation = None
    if account.gate is not None:
        reservation = await account.gate.reserve(planned, account.attempts)
    return Order(planned=planned, request=request, reservation=reservation)


def answered(order: Order, link: Link, response: LLMResponse, attempt: Attempt) -> list[Attempt]:
    """What is booked for a whole reply; `attempt` is it where its adapter notes none."""
    *before, last = response.attempts or (attempt,)
    usage = last.usage or Usage()
    if None in (usage.input_tokens, usage.output_tokens):
        wrote = response.content + (response.reasoning or "")
        wrote += "".join(str(call.arguments) for call in response.tool_calls)
        last = _estimated(last, order, estimate_tokens(wrote))
    return _booked(order, link, before, last)


def failed(order: Order, link: Link, error: ProviderError, attempt: Attempt) -> list[Attempt]:
    """What is booked for one that failed."""
    *before, last = error.attempts or (attempt,)
    if error.unbilled:
        return _booked(order, link, (*before, last), None)
    # What a server told before it broke off is what it had counted by then.
    last = _estimated(last, order, attempt.duration_ms * _FASTEST // 1000)
    return _booked(order, link, before, last)


def given_up(order: Order, link: Link, attempt: Attempt) -> list[Attempt]:
    """What is booked for one that was cancelled."""
    estimated = _estimated(attempt, order, attempt.duration_ms * _FASTEST // 1000)
    return _booked(order, link, (), estimated)


def _estimated(attempt: Attempt, order: Order, output_tokens: int) -> Attempt:
    planned, told = order.planned, attempt.usage or Usage()
    read = told.input_tokens
    if read is None:
        read = planned.input_tokens or _estimate(order.request)
    wrote = max(min(output_tokens, planned.output_tokens), told.output_tokens or 0)
    usage = replace(told, input_tokens=read, output_tokens=wrote)
    return replace(attempt, usage=usage, estimated=True)


def _estimate(request: LLMRequest) -> int:
    seen = sum(isinstance(one, Picture) for one in request.shown.values())
    return estimate_request_tokens(request.messages) + seen * PICTURE_TOKENS


def _booked(
    order: Order, link: Link, unbilled: Sequence[Attempt], last: Attempt | None
) -> list[Attempt]:
    """The attempts with their costs and what was set aside for them."""
    done = [replace(one, cost=0, reservation=order.reservation) for one in unbilled]
    if last is not None:
        usage = last.usage or Usage()
        cost = link.prices.cost(usage, last.started_at)
        done.append(replace(last, cost=cost, reservation=order.reservation))
    return done
