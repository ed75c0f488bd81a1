"""What the API needs of the daemon that it shows and steers."""

from __future__ import annotations

from typing import Protocol

from teaagentd.abc import Clock
from teaagentd.agent.budget import Spending
from teaagentd.core.activity import ActivityFeed
from teaagentd.core.bus import MessageBus
from teaagentd.core.dispatcher import Dispatcher
from teaagentd.core.gate import Gate
from teaagentd.core.loop import Loop
from teaagentd.providers.chain import Chain
from teaagentd.services.alerts import Alerts
from teaagentd.services.intake import Intake
from teaagentd.services.models import Models
from teaagentd.store import Store


class Served(Protocol):
    """A running daemon. Its parts are made before the API and outlive it."""

    @property
    def bus(self) -> MessageBus: ...
    @property
    def intake(self) -> Intake: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def gate(self) -> Gate: ...
    @property
    def store(self) -> Store: ...
    @property
    def feed(self) -> ActivityFeed: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def chain(self) -> Chain: ...
    @property
    def spending(self) -> Spending: ...
    @property
    def models(self) -> Models: ...
    @property
    def alerts(self) -> Alerts: ...
    @property
    def clock(self) -> Clock: ...

    @property
    def started_at(self) -> int:
        """Milliseconds since the epoch, UTC."""

    @property
    def generations(self) -> int:
        """How many configurations were in force so far."""

    @property
    def loaded_at(self) -> int:
        """Since when the present one is, in milliseconds since the epoch, UTC."""

    @property
    def configuration_problem(self) -> str | None:
        """Why the file that is there now is not in force; None if it is."""

    @property
    def draining(self) -> bool:
        """Whether its end has begun."""

    def request_stop(self) -> None:
        """Begin the end; a second call forces it."""
