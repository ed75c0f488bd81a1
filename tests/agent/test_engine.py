"""One decision: what is asked, what is asked again, what is shown and what is booked."""

from __future__ import annotations

import anyio
import orjson
import pytest
import structlog.testing

from teaagentd.agent.decisions import FinalAnswer, ToolCalls
from teaagentd.agent.dialects import JsonDialect
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import (
    AuthenticationFailed,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)
from teaagentd.testing import Broken, Scripted, ScriptedModel
from teaagentd.types import JsonObject, LLMMessage, LLMResponse, ToolCall, Usage
from tests.agent.doubles import FunctionTool, Notes, call, saying, user

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(wait_s=0.001, jitter_s=0.0)
BAD = LLMResponse(content='{"action": ')


def engine(model: ScriptedModel, **options: object) -> ModelDecisionEngine:
    registry = ToolRegistry([saying("find", "found"), saying("add", "3")])
    return ModelDecisionEngine(
        adapter=model,
        registry=registry,
        **{"retry": QUICK, **options},  # type: ignore[arg-type]
    )


async def test_a_native_request_holds_the_prompt_the_history_and_the_tools_in_order() -> None:
    model = ScriptedModel(["hi"])
    await engine(model).decide(system="Be kind.", history=[user("hello")], cache_key="api:1")
    (request,) = model.requests
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be kind."),
        ("user", "hello"),
    ]
    assert [tool.name for tool in request.tools] == ["add", "find"]
    assert request.tool_choice == "auto"
    assert request.response_schema is None
    assert request.cache_key == "api:1"


async def test_a_last_pass_keeps_the_tools_and_takes_no_call() -> None:
    model = ScriptedModel([LLMResponse(content="so be it", tool_calls=(call("find"),))])
    decided = await engine(model).decide(system="", history=[user("x")], answer_only=True)
    assert model.requests[0].tool_choice == "none"
    assert len(model.requests[0].tools) == 2
    assert decided.decision == FinalAnswer(content="so be it")
    assert decided.message.tool_calls == ()


async def test_auto_follows_what_the_adapter_can_do() -> None:
    model = ScriptedModel(["hi"], native_tools=False)
    decided = await engine(model).decide(system="Be kind.", history=[user("hello")])
    (request,) = model.requests
    assert request.tools == ()
    assert request.response_schema is not None
    assert request.messages[0].content.startswith("Be kind.\n\nReply with one JSON object")
    assert decided.decision == FinalAnswer(content="hi")
    assert decided.message.raw == '{"action":"answer","text":"hi"}'
    assert decided.message.content == "hi"


async def test_an_illegal_history_is_sent_legal() -> None:
    history = [
        LLMMessage(role="assistant", tool_calls=(call("find", "t:0"), call("add", "t:0"))),
        LLMMessage(role="tool", tool_call_id="nobody", content="orphan"),
        user(""),
    ]
    for native in (True, False):
        model = ScriptedModel(["ok"], native_tools=native)
        await engine(model).decide(system="", history=history)
        assert model.refused == []


async def test_an_unreadable_reply_is_asked_for_again_with_the_repair_behind_it() -> None:
    model = ScriptedModel([BAD, "fine"], native_tools=False)
    notes = Notes()
    decided = await engine(model).decide(system="", history=[user("q")], watcher=notes)
    first, second = model.requests
    assert second.messages[: len(first.messages)] == first.messages
    invalid, repair = second.messages[len(first.messages) :]
    assert (invalid.role, invalid.content) == ("assistant", BAD.content)
    assert repair.role == "user"
    assert "one JSON object" in repair.content
    assert decided.decision == FinalAnswer(content="fine")
    assert len(decided.usages) == 2
    assert len(decided.attempts) == 2
    assert notes.screen == "fine"


@pytest.mark.parametrize(
    ("last", "content", "fallback"),
    [
        ("just words", "just words", "plain_text"),
        ('{"action": "answer", "text": "half a sen', "half a sen", "partial_answer"),
        (
            '{"actio',
            '{"status":"error","action":"wait","reason":"invalid_model_decision_json"}',
            "invalid_model_decision_json",
        ),
    ],
)
async def test_after_the_last_repair_what_was_said_in_words_counts(
    last: str, content: str, fallback: str
) -> None:
    model = ScriptedModel([BAD, BAD, LLMResponse(content=last)], native_tools=False)
    decided = await engine(model).decide(system="", history=[user("q")])
    assert len(model.requests) == 3
    assert decided.decision == FinalAnswer(
        content=content, metadata={"decision_fallback": fallback}
    )
    assert decided.message.raw is None
    assert model.refused == []


async def test_text_shown_for_a_reply_that_is_void_is_voided() -> None:
    replies: list[Scripted] = [
        LLMResponse(content='{"action": "answer", "text": "wrong", "arguments": {}}'),
        "right",
    ]
    notes = Notes()
    model = ScriptedModel(replies, native_tools=False)
    await engine(model).decide(system="", history=[user("q")], watcher=notes)
    assert notes.resets == 1
    assert notes.screen == "right"


async def test_what_a_reply_takes_back_is_taken_off_the_screen() -> None:
    model = ScriptedModel([LLMResponse(content="Yes.", reasoning="Hm.", restated=True)])
    notes = Notes()
    decided = await engine(model).decide(system="", history=[user("q")], watcher=notes)
    assert decided.decision == FinalAnswer(content="Yes.")
    assert notes.resets == 1


@pytest.mark.parametrize("native", [True, False])
async def test_a_passing_failure_is_tried_again_and_what_was_shown_is_voided(
    native: bool,
) -> None:
    text = "half an ans" if native else '{"action": "answer", "text": "half an ans'
    replies: list[Scripted] = [
        Broken(text=text, error=ProviderUnavailable("cut")),
        ProviderUnavailable("x"),
        "ok",
    ]
    model, notes = ScriptedModel(replies, native_tools=native), Notes()
    decided = await engine(model).decide(system="", history=[user("q")], watcher=notes)
    assert decided.decision == FinalAnswer(content="ok")
    assert notes.screen == "ok"
    assert notes.resets == 1
    assert [attempt.error for attempt in decided.attempts] == [
        "ProviderUnavailable",
        "ProviderUnavailable",
        None,
    ]
    assert [phase for phase, _ in notes.phases] == ["thinking"] * 3
    assert model.requests[0] == model.requests[1] == model.requests[2]


async def test_a_failure_that_lasts_is_raised_with_all_attempts_and_nothing_on_the_screen() -> None:
    errors = [ProviderUnavailable(f"try {n}") for n in range(3)]
    model = ScriptedModel([Broken(text="abc", error=error) for error in errors])
    notes = Notes()
    with pytest.raises(ProviderUnavailable, match="try 2") as raised:
        await engine(model).decide(system="", history=[user("q")], watcher=notes)
    assert len(raised.value.attempts) == 3
    assert notes.screen == ""


@pytest.mark.parametrize(
    "error", [AuthenticationFailed("no"), RequestRefused("no"), QuotaExhausted("no")]
)
async def test_a_failure_for_good_is_not_tried_again(error: Exception) -> None:
    model = ScriptedModel([error, "never"])
    with pytest.raises(type(error)):
        await engine(model).decide(system="", history=[user("q")])
    assert len(model.requests) == 1


def limited(retry_after_s: float) -> RateLimited:
    error = RateLimited("slow down")
    error.retry_after_s = retry_after_s
    return error


async def test_the_server_s_wait_is_a_floor() -> None:
    asked: list[float] = []

    async def reply(request: object) -> str:
        asked.append(anyio.current_time())
        return "ok"

    model = ScriptedModel([limited(0.1), reply])
    begun = anyio.current_time()
    await engine(model).decide(system="", history=[user("q")])
    assert asked[0] - begun >= 0.1


async def test_a_wait_beyond_the_deadline_or_the_limit_is_not_begun() -> None:
    model = ScriptedModel([limited(30.0), "never", limited(600.0), "never"])
    with anyio.fail_after(5):
        with pytest.raises(RateLimited):
            await engine(model).decide(system="", history=[user("q")])
    model = ScriptedModel([limited(600.0), "never"])
    with pytest.raises(RateLimited):
        await engine(model).decide(system="", history=[user("q")])
    assert len(model.requests) == 1


async def test_announced_calls_that_are_missing_are_an_error_not_a_round() -> None:
    # HKUDS/nanobot#2580
    empty = LLMResponse(content="", finish_reason="tool_calls", usage=Usage(input_tokens=5))
    model = ScriptedModel([empty, call("find", "c9")])
    decided = await engine(model).decide(system="", history=[user("q")])
    assert isinstance(decided.decision, ToolCalls)
    assert decided.attempts[0].usage == Usage(input_tokens=5, output_tokens=1)
    assert decided.attempts[0].estimated
    assert len(decided.attempts) == 2
    model = ScriptedModel([empty, empty, empty])
    with pytest.raises(ProviderUnavailable) as raised:
        await engine(model).decide(system="", history=[user("q")])
    assert len(raised.value.attempts) == 3


async def test_a_filtered_reply_is_refused_in_words() -> None:
    model = ScriptedModel([LLMResponse(content="", finish_reason="content_filter")])
    with pytest.raises(RequestRefused, match="filter"):
        await engine(model).decide(system="", history=[user("q")])


async def test_a_call_that_was_cut_off_before_its_arguments_is_marked() -> None:
    # NousResearch/hermes-agent#7693
    cut = LLMResponse(
        content="",
        tool_calls=(call("add", "c1", a=1), ToolCall(id="c2", name="find", arguments={})),
        finish_reason="length",
    )
    decided = await engine(ScriptedModel([cut])).decide(system="", history=[user("q")])
    assert isinstance(decided.decision, ToolCalls)
    whole, broken = decided.decision.calls
    assert whole.problem is None
    assert broken.problem is not None
    assert "cut off" in broken.problem
    assert decided.message.tool_calls == decided.decision.calls


async def test_ids_that_come_round_again_are_made_anew_before_they_are_kept() -> None:
    # NousResearch/hermes-agent#11722
    history = [
        user("a"),
        LLMMessage(role="assistant", tool_calls=(call("find", "t:0"),)),
        LLMMessage(role="tool", tool_call_id="t:0", name="find", content="found"),
    ]
    decided = await engine(ScriptedModel([call("find", "t:0")])).decide(system="", history=history)
    assert isinstance(decided.decision, ToolCalls)
    assert decided.decision.calls[0].id != "t:0"
    assert decided.message.tool_calls == decided.decision.calls


async def test_a_json_history_is_replayed_as_it_was_written_and_alternates() -> None:
    model = ScriptedModel(
        [call("find", q="x"), "found it", "bye"], native_tools=False, context_window=1000
    )
    decide = engine(model).decide
    history = [user("one")]
    first = await decide(system="S", history=history)
    assert isinstance(first.decision, ToolCalls)
    call_id = first.decision.calls[0].id
    history += [
        first.message,
        LLMMessage(role="tool", tool_call_id=call_id, name="find", content="a\nb"),
        LLMMessage(role="user", content="also that", note="[12:00]"),
    ]
    second = await decide(system="S", history=history)
    history += [second.message, user("thanks"), user("really")]
    await decide(system="S", history=history)
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
    roles = [message.role for message in model.requests[2].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    written = [m.content for m in model.requests[2].messages if m.role == "assistant"]
    assert written == [
        '{"action":"find","arguments":{"q":"x"}}',
        '{"action":"answer","text":"found it"}',
    ]
    told = model.requests[2].messages[3].content
    assert told == (
        f"The result of find is:\n<result {call_id}>\na\nb\n</result {call_id}>\n"
        "Now answer the question.\n\n[12:00]\n\nalso that"
    )
    assert model.requests[2].messages[5].content == "thanks\n\nreally"


async def test_a_history_of_the_other_dialect_can_be_gone_on_with() -> None:
    history = [
        user("one"),
        LLMMessage(
            role="assistant",
            content="Both at once.",
            tool_calls=(call("find", "a", q="é"), call("add", "b")),
        ),
        LLMMessage(role="tool", tool_call_id="a", name="find", content="found"),
        LLMMessage(role="tool", tool_call_id="b", name="add", content="3"),
        LLMMessage(role="assistant", content="Done."),
        user("two"),
    ]
    model = ScriptedModel(["ok"], native_tools=False)
    await engine(model).decide(system="", history=history)
    assert [(m.role, m.content) for m in model.requests[0].messages[1:]] == [
        ("user", "one"),
        ("assistant", '{"action": "find", "arguments": {"q": "é"}, "text": "Both at once."}'),
        ("user", "The result of find is: found\nNow answer the question."),
        ("assistant", '{"action": "add", "arguments": {}}'),
        ("user", "The result of add is: 3\nNow answer the question."),
        ("assistant", '{"action": "answer", "text": "Done."}'),
        ("user", "two"),
    ]


async def test_a_json_last_pass_asks_for_an_answer_only() -> None:
    wrong = LLMResponse(content='{"action": "find", "arguments": {}}')
    model = ScriptedModel([wrong, "well then"], native_tools=False)
    decided = await engine(model).decide(system="", history=[user("q")], answer_only=True)
    schema = model.requests[0].response_schema
    assert schema is not None
    assert "anyOf" not in schema
    assert decided.decision == FinalAnswer(content="well then")


async def test_a_brief_prompt_has_one_line_for_each_tool() -> None:
    model = ScriptedModel(["ok"], native_tools=False)
    brief = JsonDialect(brief=True, answer_limit=400)
    await engine(model, json_dialect=brief).decide(system="Hi.", history=[user("q")])
    assert model.requests[0].messages[0].content == (
        "Hi.\n\nReply with one JSON object and nothing else.\n"
        '{"action": "answer", "text": "..."} says something to the user.\n'
        '{"action": "add", "arguments": {}} does what add does.\n'
        '{"action": "find", "arguments": {}} does what find does.'
    )


async def test_a_small_model_is_offered_no_more_than_it_can_handle() -> None:
    parameters: JsonObject = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
    }
    registry = ToolRegistry(
        [FunctionTool("read", saying("x", "x").run, parameters=parameters), saying("find", "found")]
    )
    model = ScriptedModel([call("read", path="a"), "Done.", "Bye."], native_tools=False)
    small = ModelDecisionEngine(
        adapter=model, registry=registry, json_dialect=JsonDialect(brief=True)
    )
    history = [user("q")]
    first = await small.decide(system="", history=history)
    call_id = first.message.tool_calls[0].id
    history += [
        first.message,
        LLMMessage(role="tool", tool_call_id=call_id, name="read", content="text"),
    ]
    await small.decide(system="", history=history)
    await small.decide(system="", history=[*history, user("and?")])
    assert (
        '{"action": "read", "arguments": {"path": "..."}}' in model.requests[0].messages[0].content
    )
    forms = [orjson.dumps(request.response_schema).decode() for request in model.requests]
    assert "path" in forms[0]
    assert "lines" not in forms[0]
    assert ["read" in form for form in forms] == [True, False, True]
    assert ["find" in form for form in forms] == [True, True, True]
    assert model.requests[1].messages[-1].content == (
        'The result of read is: "text"\nNow answer the question with these words.'
    )
    assert (
        model.requests[1].messages[: len(model.requests[0].messages)] == model.requests[0].messages
    )


async def test_cancelling_ends_the_open_request() -> None:
    turn, ended = anyio.CancelScope(), anyio.Event()

    async def hang(request: object) -> str:
        turn.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    with turn:
        await engine(ScriptedModel([hang])).decide(system="", history=[user("q")])
    assert turn.cancelled_caught
    assert ended.is_set()


async def test_a_retry_is_logged_without_the_provider_s_words() -> None:
    model = ScriptedModel([ProviderUnavailable("cannot parse: my pin is 1234"), "ok"])
    with structlog.testing.capture_logs() as logs:
        await engine(model).decide(system="", history=[user("my pin is 1234")])
    assert "request_tried_again" in [entry["event"] for entry in logs]
    assert "1234" not in str(logs)
