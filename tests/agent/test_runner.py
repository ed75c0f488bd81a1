"""A run from its first request to its last word, through every exit, in both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import anyio
import orjson
import pytest
from anyio.abc import TaskGroup

from teaagentd import transcript
from teaagentd.agent import wording
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.execution import RunPlace
from teaagentd.agent.runner import AgentRunner, RunLimits, RunOutcome
from teaagentd.agent.toolbox import Toolbox, ToolRegistry
from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    FatalToolError,
    ModelMissing,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    StoreUnavailable,
)
from teaagentd.providers.wire import Messages
from teaagentd.testing import Broken, Scripted, ScriptedModel, illegal
from teaagentd.types import JsonObject, LLMMessage, LLMResponse, SessionKey, ToolCall
from tests import strict_dialect
from tests.agent.doubles import FunctionTool, MemoryJournal, Notes, call, saying, user

pytestmark = pytest.mark.anyio

PLACE = RunPlace(session_key=SessionKey(channel="api", chat_id="1"), turn_id="t1")
RETRY = RetryPolicy(wait_s=0.001, jitter_s=0.0)
BLANK = LLMResponse(content="\u200b \n")
UNAVAILABLE = [ProviderUnavailable("no route")] * 3


async def fails(arguments: JsonObject, context: object) -> str:
    raise FatalToolError("the disk is gone")


TOOLS = (saying("find", "found"), saying("add", "3"), FunctionTool("wreck", fails))


class Rig:
    """One run with its doubles."""

    def __init__(
        self,
        replies: Sequence[Scripted],
        *,
        native: bool = True,
        limits: RunLimits | None = None,
        tools: Sequence[FunctionTool] = TOOLS,
        default: Scripted | None = None,
    ) -> None:
        self.model = ScriptedModel(replies, native_tools=native, default=default)
        self.journal = MemoryJournal([user("Please.")])
        self.notes = Notes()
        self.limits = limits
        self.tools = tools

    async def run(self, history: Sequence[LLMMessage] | None = None) -> RunOutcome:
        registry = ToolRegistry(self.tools)
        async with anyio.create_task_group() as strays:
            return await self.runner(registry, strays).run(
                system="Be kind.", history=history or tuple(self.journal.transcript)
            )
        raise AssertionError("unreachable")

    def runner(self, registry: ToolRegistry, strays: TaskGroup) -> AgentRunner:
        return AgentRunner(
            engine=ModelDecisionEngine(adapter=self.model, registry=registry, retry=RETRY),
            toolbox=Toolbox(registry=registry, strays=strays),
            journal=self.journal,
            place=PLACE,
            watcher=self.notes,
            limits=self.limits,
        )

    def check_closed(self) -> None:
        """The history is legal as it is, closed, and ends with words to the user."""
        history = self.journal.transcript
        assert self.model.refused == []
        for asked in self.model.requests:
            wire = orjson.loads(orjson.dumps(list(Messages(asked.messages)), default=dict))
            assert strict_dialect.illegal(wire) is None
        assert illegal(history) is None
        assert transcript.legal(history) == tuple(history)
        assert history[-1].role == "assistant"
        assert not history[-1].tool_calls


@pytest.fixture(params=[True, False], ids=["native", "json"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_an_answer_closes_the_run(native: bool) -> None:
    rig = Rig(["Hello."], native=native)
    outcome = await rig.run()
    assert rig.journal.events == ["close_or_fold"]
    assert rig.journal.said == ["Hello."]
    assert (outcome.status, outcome.text, outcome.iterations) == ("answered", "Hello.", 1)
    assert outcome.usage.input_tokens
    assert outcome.unknown_usages == 0
    assert len(rig.journal.attempts) == 1
    assert rig.notes.screen == "Hello."
    assert rig.notes.phases == [("thinking", "")]
    assert rig.model.requests[0].cache_key == "api:1"
    rig.check_closed()


async def test_each_step_is_in_the_journal_before_the_next(native: bool) -> None:
    rig = Rig([call("find", "a"), call("add", "b"), "Done."], native=native)
    outcome = await rig.run()
    assert rig.journal.events == [
        "decided",
        "started find",
        "finished find ok",
        "fold",
        "decided",
        "started add",
        "finished add ok",
        "fold",
        "close_or_fold",
    ]
    assert (outcome.iterations, outcome.tool_calls) == (3, 2)
    assert len(rig.journal.attempts) == 3
    rig.check_closed()


async def test_each_request_begins_with_the_one_before(native: bool) -> None:
    rig = Rig(
        [call("find", "t:0"), call("add", "t:0"), "One.", call("find", "t:0"), "Two."],
        native=native,
    )
    rig.journal.arriving = [[], [user("and that")], [user("more")]]
    await rig.run()
    requests = rig.model.requests
    assert len(requests) == 5
    for before, after in pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools
    stored = MemoryJournal(rig.journal.transcript).transcript
    rig.model.add("Again.")
    journal, rig.journal = rig.journal, MemoryJournal([*stored, user("next turn")])
    await rig.run()
    later = rig.model.requests[-1]
    assert later.messages[: len(requests[-2].messages)] == requests[-2].messages
    assert journal.outcome == "answered"
    rig.check_closed()


async def test_steering_comes_after_the_whole_round_and_byte_for_byte(native: bool) -> None:
    # microclaw/microclaw#330
    steering = "use  the\tOTHER one — please\u00a0✓"
    first: Scripted = [call("find", "a"), call("add", "b")] if native else call("find", "a")
    rig = Rig([first, "Done."], native=native)
    rig.journal.arriving = [[user(steering)]]
    await rig.run()
    messages = rig.model.requests[1].messages
    if native:
        assert [m.role for m in messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "user",
        ]
        assert [m.tool_call_id for m in messages[3:5]] == ["a", "b"]
        assert messages[5].content == steering
    else:
        assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
        assert messages[3].content.endswith("\n\n" + steering)
    rig.check_closed()


async def test_an_answer_overtaken_by_a_message_is_said_and_the_run_goes_on(native: bool) -> None:
    rig = Rig(["First.", "Second."], native=native)
    rig.journal.arriving = [[user("wait, also this")]]
    outcome = await rig.run()
    assert rig.journal.said == ["First.", "Second."]
    assert rig.journal.rounds_left == [True, True]
    assert outcome.text == "Second."
    assert rig.model.requests[1].messages[-1].content == "wait, also this"
    rig.check_closed()


async def test_text_beside_calls_is_a_notice(native: bool) -> None:
    reply = (
        LLMResponse(content="Let me look.", tool_calls=(call("find"),), finish_reason="tool_calls")
        if native
        else LLMResponse(content='{"action":"find","arguments":{},"text":"Let me look."}')
    )
    rig = Rig([reply, "Done."], native=native)
    await rig.run()
    assert rig.journal.notices == ["Let me look."]
    assert rig.journal.said == ["Done."]
    rig.check_closed()


async def test_when_the_steps_run_out_the_last_pass_answers_without_tools(native: bool) -> None:
    rig = Rig(
        [call("find", "a"), call("add", "b"), "As far as I got."],
        native=native,
        limits=RunLimits(max_iterations=2),
    )
    rig.journal.arriving = [[], [user("too late for this turn")]]
    outcome = await rig.run()
    assert outcome.status == "answered"
    assert rig.journal.said == ["As far as I got."]
    last = rig.model.requests[2]
    assert last.tools == rig.model.requests[0].tools
    if native:
        assert last.tool_choice == "none"
    # What arrives in the last iteration is left to the next turn, not taken and dropped.
    assert rig.journal.events.count("fold") == 1
    assert rig.journal.rounds_left == [False]
    rig.check_closed()


async def test_a_message_that_comes_with_the_last_permitted_answer_is_left_alone() -> None:
    # dp-archive/archive#176
    rig = Rig([call("find"), "Done."], limits=RunLimits(max_iterations=2))
    rig.journal.arriving = [[], [user("late")]]
    await rig.run()
    assert rig.journal.rounds_left == [False]
    assert len(rig.model.requests) == 2
    rig.check_closed()


@pytest.mark.parametrize("last", [[BLANK], UNAVAILABLE])
async def test_a_last_pass_that_says_nothing_ends_at_the_limit(last: list[Scripted]) -> None:
    rig = Rig([call("find"), *last], limits=RunLimits(max_iterations=1))
    outcome = await rig.run()
    assert outcome.status == rig.journal.outcome == "limit"
    assert "limit of 1 steps" in outcome.text
    assert len(rig.journal.attempts) == len(rig.model.requests)
    rig.check_closed()


async def test_calls_beyond_the_limit_get_results_and_are_not_run() -> None:
    calls = [call("find", f"c{n}", n=n) for n in range(5)]
    rig = Rig([calls, "Enough."], limits=RunLimits(max_tool_calls=3))
    outcome = await rig.run()
    assert outcome.tool_calls == 3
    statuses = [result.status for result in rig.journal.results.values()]
    assert statuses == ["ok"] * 3 + ["not_run"] * 2
    assert rig.model.requests[1].tool_choice == "none"
    rig.check_closed()


async def test_the_same_call_with_the_same_result_again_and_again_ends_the_use_of_tools(
    native: bool,
) -> None:
    same = [call("find", "x", q="a") for _ in range(5)]
    rig = Rig([*same, "I give up."], native=native)
    outcome = await rig.run()
    assert outcome.tool_calls == 5
    assert rig.journal.said == ["I give up."]
    rig.check_closed()


async def test_another_result_or_other_arguments_are_progress() -> None:
    count = 0

    async def poll(arguments: JsonObject, context: object) -> str:
        nonlocal count
        count += 1
        return f"{count} %"

    replies: list[Scripted] = [call("poll") for _ in range(12)]
    rig = Rig([*replies, "Done."], tools=[FunctionTool("poll", poll)])
    assert (await rig.run()).tool_calls == 12
    replies = [call("find", q=n) for n in range(12)]
    rig = Rig([*replies, "Done."])
    assert (await rig.run()).tool_calls == 12


async def test_steering_begins_the_count_of_repetitions_anew() -> None:
    replies: list[Scripted] = [call("find") for _ in range(8)]
    rig = Rig([*replies, "Done."])
    rig.journal.arriving = [[], [], [], [user("try again")]]
    assert (await rig.run()).tool_calls == 8


async def test_truncated_arguments_repeated_end_with_words() -> None:
    # NousResearch/hermes-agent#74798
    cut = ToolCall(id="c", name="find", arguments={}, problem="cut off; send less at a time")
    rig = Rig([cut] * 5 + ["It is too long for me to write at once."])
    await rig.run()
    assert not any(event.startswith("started") for event in rig.journal.events)
    assert rig.journal.said == ["It is too long for me to write at once."]
    rig.check_closed()


async def test_an_empty_answer_is_asked_for_again_once_and_that_is_not_kept(native: bool) -> None:
    # HKUDS/nanobot#235
    blank: Scripted = BLANK if native else LLMResponse(content='{"action":"answer","text":" "}')
    rig = Rig([call("find"), blank, "Found it."], native=native)
    outcome = await rig.run()
    assert (outcome.status, outcome.text, outcome.iterations) == ("answered", "Found it.", 3)
    assert not any("empty" in m.content for m in rig.journal.transcript)
    if native:
        assert rig.model.requests[2].tool_choice == "none"
    assert rig.model.requests[2].tools == rig.model.requests[1].tools
    assert len(rig.journal.attempts) == 3
    rig.check_closed()


async def test_what_was_said_beside_a_call_stands_for_an_answer_that_stays_empty() -> None:
    # HKUDS/nanobot#4002
    said = LLMResponse(content="The file says 42.", tool_calls=(call("find"),))
    reasoning_only = LLMResponse(content="", reasoning="hm")
    rig = Rig([said, reasoning_only, BLANK])
    outcome = await rig.run()
    assert outcome.text == "The file says 42."
    assert rig.journal.outcome == "answered"
    rig.check_closed()


async def test_else_a_short_report_says_what_was_done(native: bool) -> None:
    rig = Rig([call("find", "a"), call("find", "b", q=1), BLANK, BLANK], native=native)
    outcome = await rig.run()
    assert "find, 2 times" in outcome.text
    assert rig.notes.screen == ""
    rig.check_closed()


async def test_an_empty_answer_to_a_mere_question_says_so_and_can_be_steered() -> None:
    # guanyilun/agent-sh#259
    rig = Rig([BLANK, BLANK, "Yes."])
    rig.journal.arriving = [[user("hello?")]]
    outcome = await rig.run()
    assert rig.journal.said[0].startswith("I have no answer")
    assert outcome.text == "Yes."
    rig.check_closed()


async def test_an_answer_that_was_cut_off_says_so(native: bool) -> None:
    content = "A long sto" if native else '{"action": "answer", "text": "A long sto"}'
    rig = Rig([LLMResponse(content=content, finish_reason="length")], native=native)
    outcome = await rig.run()
    assert outcome.text.startswith("A long sto\n\n[cut off")
    rig.check_closed()


def limited() -> RateLimited:
    error = RateLimited("slow down")
    error.retry_after_s = 7200.0
    return error


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([AuthenticationFailed("bad key sk-secret")], "Check its api_key"),
        ([limited()], "in 2 hours"),
        (UNAVAILABLE, "no route"),
        ([Broken(text="half", error=ProviderUnavailable("cut"))] * 3, "broke off"),
        ([RequestRefused("model gone")], "model gone"),
        ([ContextOverflow("too long")], "/new"),
    ],
)
async def test_an_error_of_the_provider_is_told_in_words(
    errors: list[Scripted], told: str, native: bool
) -> None:
    rig = Rig([call("find"), *errors], native=native)
    outcome = await rig.run()
    assert outcome.status == rig.journal.outcome == "failed"
    assert told in outcome.text
    assert "kept" in outcome.text
    assert "secret" not in outcome.text
    assert rig.notes.screen == ""
    assert len(rig.journal.attempts) == 1 + len(errors)
    rig.check_closed()


async def test_replies_that_never_make_sense_fail_in_words() -> None:
    rig = Rig([LLMResponse(content="{")] * 3, native=False)
    outcome = await rig.run()
    assert outcome.status == "failed"
    assert "status" not in outcome.text
    assert outcome.iterations == 3
    rig.check_closed()


async def test_a_history_that_does_not_fit_is_made_shorter_at_most_twice(native: bool) -> None:
    def overflow() -> ProviderError:
        return ContextOverflow("too long")

    rig = Rig([overflow(), overflow(), "Fits."], native=native)
    rig.journal.shorter = [[user("short")], [user("shorter")], [user("shortest")]]
    outcome = await rig.run()
    assert outcome.text == "Fits."
    assert rig.model.requests[-1].messages[-1].content == "shorter"
    assert len(rig.journal.attempts) == 3
    rig.check_closed()
    rig = Rig([overflow(), overflow(), overflow(), "never"], native=native)
    rig.journal.shorter = [[user("short")], [user("shorter")], [user("shortest")]]
    outcome = await rig.run()
    assert outcome.status == "failed"
    assert rig.journal.events == ["overflow", "overflow", "close"]
    rig.check_closed()


async def test_a_fatal_tool_ends_the_run_after_all_its_siblings() -> None:
    # HKUDS/nanobot#3045
    rig = Rig([[call("wreck", "a"), call("find", "b")]])
    outcome = await rig.run()
    assert outcome.status == rig.journal.outcome == "failed"
    assert "the disk is gone" in outcome.text
    assert [m.content for m in rig.journal.transcript if m.role == "tool"] == [
        "error: the disk is gone",
        "found",
    ]
    rig.check_closed()


@pytest.mark.parametrize("after", range(10))
async def test_a_turn_closed_by_someone_else_ends_the_run_without_a_word(after: int) -> None:
    rig = Rig([[call("find", "a"), call("add", "b")], call("find", "c"), "Done."])
    rig.journal.ended_after = after
    outcome = await rig.run()
    assert outcome.status == "ended"
    assert rig.journal.said == []
    rig.journal.closed("Stopped.", "stopped")
    rig.check_closed()


@pytest.mark.parametrize("ask", range(1, 4))
async def test_a_cancelled_run_leaves_a_history_that_can_be_closed(ask: int, native: bool) -> None:
    async def hang(request: object) -> str:
        await anyio.sleep_forever()
        return ""

    replies: list[Scripted] = [call("find", "a"), call("add", "b"), "Done."]
    replies[ask - 1] = hang
    rig = Rig(replies, native=native)
    async with anyio.create_task_group() as group:
        group.start_soon(rig.run)
        await rig.model.wait_asked(ask)
        group.cancel_scope.cancel()
    assert rig.journal.outcome is None
    rig.journal.closed("Stopped.", "stopped")
    rig.check_closed()


async def test_a_run_cancelled_in_a_call_leaves_a_history_that_can_be_closed() -> None:
    running = anyio.Event()

    async def hang(arguments: JsonObject, context: object) -> str:
        running.set()
        await anyio.sleep_forever()
        return ""

    rig = Rig(
        [[call("find", "a"), call("hang", "b")]],
        tools=[saying("find", "found"), FunctionTool("hang", hang)],
    )
    async with anyio.create_task_group() as group:
        group.start_soon(rig.run)
        await running.wait()
        await rig.journal.wait_result("a")
        group.cancel_scope.cancel()
    rig.journal.closed("Stopped.", "stopped")
    contents = [m.content for m in rig.journal.transcript if m.role == "tool"]
    assert contents == ["found", transcript.UNKNOWN_OUTCOME]
    rig.check_closed()


async def test_a_journal_that_fails_is_the_owner_s_affair() -> None:
    class Failing(MemoryJournal):
        async def fold(self) -> Sequence[LLMMessage]:
            raise StoreUnavailable("disk full")

    rig = Rig([call("find"), "Done."])
    rig.journal = Failing([user("Please.")])
    with pytest.raises(ExceptionGroup) as raised:
        await rig.run()
    assert isinstance(raised.value.exceptions[0], StoreUnavailable)


async def test_a_resumed_run_goes_on_from_its_results(native: bool) -> None:
    history = [
        user("Please."),
        LLMMessage(role="assistant", tool_calls=(call("find", "a"),)),
        LLMMessage(role="tool", tool_call_id="a", name="find", content=transcript.UNKNOWN_OUTCOME),
    ]
    rig = Rig(["I was cut off."], native=native)
    rig.journal = MemoryJournal(history)
    outcome = await rig.run()
    assert outcome.text == "I was cut off."
    rig.check_closed()


def test_a_used_up_quota_says_when_it_begins_anew_if_that_is_known() -> None:
    spent = QuotaExhausted("no more")
    assert "used up. Your message" in wording.failure(spent)
    spent.retry_after_s = 7200.0
    assert "begins anew in 2 hours. Your message" in wording.failure(spent)


def test_a_missing_model_says_what_to_install_and_nothing_else() -> None:
    text = wording.failure(ModelMissing("the embedded model is not installed; run: pip …"))
    assert "run: pip …" in text
    assert "other words" not in text
