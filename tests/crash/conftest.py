"""What the crash tests share: scenarios that run two at a time, ahead of the tests that ask."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.crash.play import Case, Outcome, play

AT_ONCE = 2
"""A start of the daemon takes a second of CPU; two cores are what the tests may count on."""


class Plays:
    """The scenarios of the tests that were selected, being played in the background."""

    def __init__(self, cases: list[Case], pool: ThreadPoolExecutor) -> None:
        self._futures: dict[str, Future[Outcome]] = {
            str(case): pool.submit(play, case) for case in cases
        }

    def outcome(self, case: Case) -> Outcome:
        """What came of it. Raises what its checks raised."""
        return self._futures[str(case)].result(timeout=600)


@pytest.fixture(scope="session")
def plays(request: pytest.FixtureRequest) -> Iterator[Plays]:
    selected = [
        item.callspec.params.get("case")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    cases = [case for case in selected if isinstance(case, Case)]
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="crash")
    try:
        yield Plays(cases, pool)
    finally:
        pool.shutdown(cancel_futures=True)
