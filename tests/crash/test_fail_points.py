"""The daemon is killed just before and just after every commit it makes, and loses nothing."""

from __future__ import annotations

import pytest

from teaagentd.store.commits import COMMITS
from tests.crash.conftest import Plays
from tests.crash.play import SIDES, Case
from tests.crash.scenarios import SCENARIOS

CASES = [
    Case(scenario, commit, side, nth)
    for scenario in SCENARIOS
    for commit in scenario.commits
    for nth in scenario.nth
    for side in SIDES
]


def test_every_commit_has_its_two_fail_points() -> None:
    """A commit that nobody kills the daemon around is a commit that nobody has proven."""
    proven = {(case.commit, case.side) for case in CASES}
    assert proven == {(commit, side) for commit in COMMITS for side in SIDES}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_or_doubled(case: Case, plays: Plays) -> None:
    """Killed there and started again until it is quiet: each message in one turn and one text."""
    outcome = plays.outcome(case)
    assert outcome.deaths == len(case.scenario.first) + 1, "the fail point was never reached"
