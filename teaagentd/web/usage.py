"""`GET /v1/usage`: what models came to, and how far the caps are used up."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from teaagentd.agent.budget import cap_name
from teaagentd.providers.prices import CENT
from teaagentd.store.spent import Spent, SpentBy
from teaagentd.store.values import Level
from teaagentd.web import reading, views
from teaagentd.web.problems import invalid
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer, View

_WAYS: tuple[SpentBy, ...] = get_args(SpentBy)
_MOST_DAYS = 36_500


class Usage:
    """What stands under `/v1/usage`."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon

    async def show(self, request: Request) -> Response:
        """The sums of the last `days` (30) days, today included, `by` day, session, model or
        purpose; and the caps of the day and the month."""
        wanted = request.query_params.get("by", "day")
        ways = [one for one in _WAYS if one == wanted]
        if not ways:
            raise invalid("by", f"must be one of {', '.join(_WAYS)}")
        days = reading.integer(request, "days", 30)
        if not 1 <= days <= _MOST_DAYS:
            raise invalid("days", f"must be from 1 to {_MOST_DAYS}")
        spending = self._daemon.spending
        since_ms = spending.day_begins_ms(days - 1)
        found = await self._daemon.store.books.spent(
            ways[0], since_ms=since_ms, zone=spending.caps.zone
        )
        levels = await spending.levels()
        return JSONAnswer(
            {
                "by": ways[0],
                "since": views.moment(since_ms),
                "entries": [{"name": name, **_sum(found[name])} for name in sorted(found)],
                "total": _sum(sum(found.values(), Spent())),
                "caps": [cap(level) for level in levels],
            }
        )


def cap(level: Level) -> View:
    """One cap, in cents or tokens as its name says."""
    limit = level.limit
    unit = CENT if limit.unit == "cost" else 1
    return {
        "name": cap_name(limit),
        "limit": limit.most / unit,
        "spent": level.spent / unit,
        "held": level.held / unit,
        "resets_at": views.moment(limit.until_ms),
    }


def _sum(spent: Spent) -> View:
    view = asdict(spent)
    cost = view.pop("cost")
    return {**view, "cost_cents": views.cents(cost)}
