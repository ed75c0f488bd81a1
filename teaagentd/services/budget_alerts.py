"""BudgetAlerts: the owner is told when a cap on spending comes near, and when it is reached."""

from __future__ import annotations

from collections.abc import Sequence

from teaagentd.agent.budget import WARN_AT, Spending, amount, cap_name
from teaagentd.services.alerts import Alerts
from teaagentd.store.values import Level, Payer

_OF = {"session": "this conversation", "day": "today", "month": "this month"}


class BudgetAlerts:
    """Raises and clears alerts by the levels that it is told of. A turn's own cap is told in the
    turn alone."""

    def __init__(self, *, alerts: Alerts, spending: Spending) -> None:
        self._alerts = alerts
        self._spending = spending
        spending.on_levels = self.told

    def told(self, levels: Sequence[Level], payer: Payer) -> None:
        """So far are the caps used up for whom `payer` names."""
        for level in levels:
            if level.limit.scope != "turn":
                self._tell(level, payer)

    async def look(self) -> None:
        """Look at the caps of the day and the month, which begin anew by themselves, and book what
        could not be booked before. Raises `StoreError`."""
        await self._spending.settle()
        levels = await self._spending.levels()
        for level in levels:
            self._tell(level, Payer())
        known = {cap_name(level.limit) for level in levels}
        for alert in self._alerts.of("budget"):
            name = alert.subject.partition(" ")[0]
            if name not in known and ".session_" not in name:
                self._alerts.cleared("budget", alert.subject)

    def _tell(self, level: Level, payer: Payer) -> None:
        limit, name = level.limit, cap_name(level.limit)
        whose = f" {payer.key}" if limit.scope == "session" else ""
        near, reached = f"{name}{whose}", f"{name} reached{whose}"
        if level.spent >= limit.most:
            self._alerts.raised(
                "budget",
                reached,
                f"The cap {name} ({amount(limit, limit.most)}) is reached for "
                f"{_OF[limit.scope]}{whose}. Until it begins anew, or is raised, I ask no model "
                "that counts for it. `teaagentd usage` shows what it went to.",
            )
        else:
            self._alerts.cleared("budget", reached)
        if level.spent >= limit.most * WARN_AT:
            self._alerts.raised(
                "budget",
                near,
                f"{WARN_AT:.0%} of the cap {name} ({amount(limit, limit.most)}) are spent for "
                f"{_OF[limit.scope]}{whose}. `teaagentd usage` shows what they went to.",
            )
        else:
            self._alerts.cleared("budget", near)
