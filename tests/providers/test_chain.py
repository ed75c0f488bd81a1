"""Who is asked next, and how long a failure keeps a provider at rest.

Faults of this kind: NousResearch/hermes-agent#104386, #36276, openclaw/openclaw#99097.
"""

from __future__ import annotations

from typing import TypeAlias

import pytest

from teaagentd.errors import (
    AuthenticationFailed,
    ModelMissing,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers.chain import Chain, Link, worth_another_pass
from teaagentd.testing import FakeClock, ScriptedModel

pytestmark = pytest.mark.anyio

NOBODY: frozenset[Link] = frozenset()

Waiting: TypeAlias = RateLimited | QuotaExhausted | ProviderUnavailable


def told_to_wait(error: Waiting, wait_s: float) -> Waiting:
    error.retry_after_s = wait_s
    return error


def link(label: str, provider: str | None = None) -> Link:
    adapter = ScriptedModel(name=label, model=f"{label}-1")
    return Link(adapter=adapter, provider=provider or label, label=label)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def chain(clock: FakeClock) -> Chain:
    """Two keys of one provider, and another provider."""
    return Chain([link("a1", "a"), link("a2", "a"), link("b")], clock=clock)


def asked(chain: Chain) -> list[str]:
    """Everyone who would be asked, in order, if all of them failed without a rest."""
    labels: list[str] = []
    tried = NOBODY
    while (found := chain.next(tried)) is not None:
        labels.append(found.label)
        tried |= {found}
    return labels


def rests(chain: Chain) -> list[float | None]:
    return [status.rests_s for status in chain.status()]


class TestOrder:
    def test_they_are_asked_in_their_order(self, chain: Chain) -> None:
        assert asked(chain) == ["a1", "a2", "b"]

    def test_a_key_that_is_used_up_is_the_fault_of_that_key(self, chain: Chain) -> None:
        given_up = chain.failed(chain.links[0], told_to_wait(RateLimited("busy"), 30))
        assert given_up == {chain.links[0]}
        assert asked(chain) == ["a2", "b"]
        assert chain.first().label == "a2"

    def test_a_server_that_is_away_is_away_for_every_key(self, chain: Chain) -> None:
        given_up = chain.failed(chain.links[0], ProviderUnavailable("away", status=503))
        assert given_up == set(chain.links[:2])
        assert chain.next(given_up) is chain.links[2]
        assert chain.first().label == "b"

    def test_who_failed_in_passing_is_asked_last(self, chain: Chain) -> None:
        chain.failed(chain.links[0], ProviderUnavailable("away"))
        assert asked(chain) == ["b", "a1", "a2"]

    def test_who_is_told_to_wait_is_not_asked_before(self, chain: Chain, clock: FakeClock) -> None:
        for one in chain.links:
            chain.failed(one, told_to_wait(RateLimited("busy"), 30))
        assert asked(chain) == []
        clock.advance(29.9)
        assert asked(chain) == []
        clock.advance(0.2)
        assert asked(chain) == ["a1", "a2", "b"]

    def test_who_has_no_credit_is_asked_only_when_there_is_nobody_else(self, chain: Chain) -> None:
        chain.failed(chain.links[0], QuotaExhausted("no credit"))
        chain.failed(chain.links[2], ProviderUnavailable("away"))
        assert asked(chain) == ["a2", "b"]
        chain.failed(chain.links[1], AuthenticationFailed("no such key"))
        chain.failed(chain.links[2], told_to_wait(RateLimited("busy"), 30))
        # Someone may have paid meanwhile: asking is better than refusing for an hour.
        assert asked(chain) == ["a1"]

    def test_a_fault_of_the_request_gives_nobody_a_rest(self, chain: Chain) -> None:
        assert chain.failed(chain.links[0], RequestRefused("bad field", status=400)) == {
            chain.links[0]
        }
        assert rests(chain) == [None, None, None]


class TestRests:
    @pytest.mark.parametrize(
        ("error", "wait_s"),
        [
            (RateLimited("busy"), 10),
            (told_to_wait(RateLimited("busy"), 86400), 86400),
            (told_to_wait(RateLimited("busy"), 0), 10),
            (told_to_wait(ProviderUnavailable("overloaded", status=529), 7), 7),
            (QuotaExhausted("no credit", status=402), 3600),
            (told_to_wait(QuotaExhausted("resets in 3h"), 10800), 10800),
            (AuthenticationFailed("no such key", status=401), 3600),
            (ModelMissing("no such model", status=404), 300),
            (RequestRefused("no such address", status=404), 300),
        ],
        ids=repr,
    )
    def test_a_failure_brings_its_rest(
        self, chain: Chain, error: ProviderError, wait_s: float
    ) -> None:
        chain.failed(chain.links[0], error)
        assert rests(chain)[0] == pytest.approx(wait_s)
        assert chain.status()[0].reason == str(error)

    def test_it_grows_while_the_failures_go_on_and_not_for_ever(
        self, chain: Chain, clock: FakeClock
    ) -> None:
        waits = []
        for _ in range(8):
            chain.failed(chain.links[2], ProviderUnavailable("away"))
            waits.append(rests(chain)[2])
        assert waits == pytest.approx([10, 20, 40, 80, 160, 300, 300, 300])
        clock.advance(300)
        assert rests(chain)[2] is None
        chain.worked(chain.links[2])
        chain.failed(chain.links[2], ProviderUnavailable("away"))
        assert rests(chain)[2] == pytest.approx(10)

    def test_an_answer_ends_it(self, chain: Chain) -> None:
        chain.failed(chain.links[0], QuotaExhausted("no credit"))
        chain.worked(chain.links[0])
        assert asked(chain) == ["a1", "a2", "b"]

    def test_a_refusal_without_a_request_says_how_long(
        self, chain: Chain, clock: FakeClock
    ) -> None:
        for wait_s, one in zip((60, 20, 90), chain.links, strict=True):
            error = told_to_wait(RateLimited(f"{one.label} is busy", provider=one.label), wait_s)
            chain.failed(one, error)
        clock.advance(5)
        refusal = chain.refusal()
        assert isinstance(refusal, RateLimited)
        assert (str(refusal), refusal.retry_after_s) == ("a2 is busy", pytest.approx(15))
        assert refusal.attempts == ()

    def test_what_is_said_is_what_can_be_waited_for(self) -> None:
        quota, busy = QuotaExhausted("no credit"), told_to_wait(RateLimited("busy"), 9)
        away = ProviderUnavailable("away")
        assert worth_another_pass([quota, busy, away]) is away
        assert worth_another_pass([quota, busy]) is busy
        assert worth_another_pass([quota, AuthenticationFailed("no such key")]) is quota


async def test_only_the_first_is_made_ready_and_all_are_closed(chain: Chain) -> None:
    await chain.warm()
    await chain.aclose()
    assert [one.adapter.closed for one in chain.links] == [True] * 3  # type: ignore[attr-defined]
