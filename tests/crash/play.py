"""Plays one scenario with one fail point, and checks what it came to."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tests.crash.checks import check
from tests.crash.scenarios import Scenario
from tests.crash.world import World

SIDES = ("before", "after")


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario and the commit around which its daemon dies."""

    scenario: Scenario
    commit: str
    side: str
    nth: int

    @property
    def point(self) -> str:
        return f"{self.commit}:{self.side}:{self.nth}"

    def __str__(self) -> str:
        return f"{self.point} {self.scenario.name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the daemons of a play ended before it came to rest."""

    deaths: int
    """By fail points."""


def play(case: Case) -> Outcome:
    """Raises AssertionError when something that must hold does not."""
    scenario = case.scenario
    with World(scenario.replies, dict(scenario.environ)) as world:
        world.arm(*scenario.first, case.point)
        scenario.play(world)
        world.settle()
        deaths = world.deaths.count(-signal.SIGKILL)
        check(world, str(case))
        world.daemon.kill()
    return Outcome(deaths)
