"""The path of one call, and calls side by side, stubborn and broken ones among them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar

import anyio
import pytest
from anyio.abc import TaskGroup

from teaagentd.agent.execution import RunPlace
from teaagentd.agent.toolbox import CallLimits, Finished, Toolbox, ToolRegistry, bounded
from teaagentd.errors import ConfigError, FatalToolError, ToolError, TooManyParked, TurnEnded
from teaagentd.types import Effect, JsonObject, LLMMessage, SessionKey, ToolCall
from tests.agent.doubles import FunctionTool, MemoryJournal, Notes, call, saying, user

pytestmark = pytest.mark.anyio

PLACE = RunPlace(session_key=SessionKey(channel="api", chat_id="1"), turn_id="t1")
NUMBER: JsonObject = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def journal_for(calls: Sequence[ToolCall]) -> MemoryJournal:
    return MemoryJournal([user("go"), LLMMessage(role="assistant", tool_calls=tuple(calls))])


async def run(
    tools: Sequence[FunctionTool],
    calls: Sequence[ToolCall],
    *,
    strays: TaskGroup,
    journal: MemoryJournal | None = None,
    place: RunPlace = PLACE,
    notes: Notes | None = None,
    limits: CallLimits | None = None,
) -> tuple[tuple[Finished, ...], MemoryJournal]:
    journal = journal or journal_for(calls)
    toolbox = Toolbox(registry=ToolRegistry(tools), strays=strays, limits=limits)
    done = await toolbox.run(calls, journal=journal, watcher=notes or Notes(), place=place)
    return done, journal


@pytest.fixture
async def strays() -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as group:
        yield group


def test_names_that_providers_refuse_and_names_that_are_taken_are_refused() -> None:
    for name in ("", "a b", "a.b", "x" * 65, "answer", "é"):
        with pytest.raises(ConfigError):
            ToolRegistry([saying(name, "")])
    with pytest.raises(ConfigError, match="two tools"):
        ToolRegistry([saying("a", ""), saying("a", "")])


def test_the_order_of_tools_is_the_same_whoever_came_first() -> None:
    one = ToolRegistry([saying("b", ""), saying("a", ""), saying("c", "")])
    other = ToolRegistry([saying("c", ""), saying("b", ""), saying("a", "")])
    assert [s.name for s in one.specs] == [s.name for s in other.specs] == ["a", "b", "c"]


async def test_a_call_is_started_in_the_journal_before_it_runs(strays: TaskGroup) -> None:
    journal = journal_for([call("find")])

    async def body(arguments: JsonObject, context: object) -> str:
        journal.events.append("runs")
        return "found"

    done, _ = await run(
        [FunctionTool("find", body)], [call("find")], strays=strays, journal=journal
    )
    assert journal.events == ["started find", "runs", "finished find ok"]
    assert done[0].result.content == "found"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("nope"), "there is no tool 'nope'; the tools are: count"),
        (call("count", n="one"), "n: 'one' is not of type 'integer'"),
        (call("count"), "'n' is a required property"),
        (call("count", n=1, m=2), "Additional properties are not allowed"),
        (
            ToolCall(id="c1", name="count", arguments={}, problem="cut off, send less"),
            "cut off, send less",
        ),
    ],
)
async def test_what_cannot_run_is_told_to_the_model_and_never_started(
    strays: TaskGroup, wrong: ToolCall, told: str
) -> None:
    async def body(arguments: JsonObject, context: object) -> str:
        raise AssertionError("must not run")

    tool = FunctionTool("count", body, parameters=NUMBER)
    done, journal = await run([tool], [wrong], strays=strays)
    assert told in done[0].result.content
    assert done[0].result.status == "error"
    assert journal.events == [f"finished {wrong.name} error"]


async def test_an_error_about_huge_arguments_stays_small(strays: TaskGroup) -> None:
    tool = FunctionTool("count", saying("x", "x").run, parameters=NUMBER)
    done, _ = await run([tool], [call("count", n="x" * 100_000)], strays=strays)
    assert len(done[0].result.content) < 1000


async def test_a_tool_with_effects_is_not_run_without_permission(strays: TaskGroup) -> None:
    tool = FunctionTool("wipe", saying("x", "x").run, effects=frozenset({Effect.WRITE}))
    done, journal = await run([tool], [call("wipe")], strays=strays)
    assert "not allowed" in done[0].result.content
    assert journal.events == ["finished wipe error"]


async def test_calls_run_side_by_side_and_keep_their_order(strays: TaskGroup) -> None:
    both = anyio.Event()

    async def slow(arguments: JsonObject, context: object) -> str:
        await both.wait()
        return "slow"

    async def quick(arguments: JsonObject, context: object) -> str:
        both.set()
        return "quick"

    tools = [FunctionTool("slow", slow), FunctionTool("quick", quick)]
    done, journal = await run(tools, [call("slow", "a"), call("quick", "b")], strays=strays)
    assert [one.result.content for one in done] == ["slow", "quick"]
    assert journal.events.index("finished quick ok") < journal.events.index("finished slow ok")
    assert [m.tool_call_id for m in journal.transcript if m.role == "tool"] == ["a", "b"]


@pytest.mark.parametrize(
    "error",
    [
        ToolError("no such file"),
        TooManyParked(100),
        ValueError("oops"),
        FatalToolError("the disk is gone"),
        SystemExit(1),
        ExceptionGroup("many", [ValueError("a")]),
    ],
)
async def test_what_one_call_raises_is_its_own_result(
    strays: TaskGroup, error: BaseException
) -> None:
    # HKUDS/nanobot#3045
    broke = anyio.Event()

    async def bad(arguments: JsonObject, context: object) -> str:
        broke.set()
        raise error

    async def good(arguments: JsonObject, context: object) -> str:
        await broke.wait()
        await anyio.sleep(0.01)
        return "fine"

    tools = [FunctionTool("bad", bad), FunctionTool("good", good)]
    done, journal = await run(tools, [call("bad", "a"), call("good", "b")], strays=strays)
    assert [one.result.status for one in done] == ["error", "ok"]
    assert str(error) in done[0].result.content
    assert [one.fatal for one in done] == [isinstance(error, FatalToolError), False]
    assert set(journal.results) == {"a", "b"}


async def test_what_is_not_text_is_an_error_and_nothing_is_said_to_be_nothing(
    strays: TaskGroup,
) -> None:
    async def number(arguments: JsonObject, context: object) -> str:
        return 3  # type: ignore[return-value]

    tools = [FunctionTool("number", number), saying("quiet", "")]
    done, _ = await run(tools, [call("number", "a"), call("quiet", "b")], strays=strays)
    assert done[0].result.status == "error"
    assert done[1].result.content == "[no output]"


async def test_output_is_bounded_and_clean(strays: TaskGroup) -> None:
    text = "HEAD" + "é" * 100_000 + "\ud800TAIL"
    done, _ = await run([saying("flood", text)], [call("flood")], strays=strays)
    content = done[0].result.content
    assert len(content.encode()) < 66_000
    assert content.startswith("HEAD")
    assert content.endswith("\ufffdTAIL")
    assert "bytes left out" in content
    assert bounded("short", 100) == "short"


async def test_at_its_deadline_a_call_ends_and_says_so(strays: TaskGroup) -> None:
    ended: list[str] = []

    async def hang(arguments: JsonObject, context: object) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("tidied up")
        return ""

    tools = [FunctionTool("hang", hang, timeout_s=0.05), saying("find", "found")]
    done, _ = await run(tools, [call("hang", "a"), call("find", "b")], strays=strays)
    assert [one.result.status for one in done] == ["timeout", "ok"]
    assert "timed out: stopped after 0.05 s]" in done[0].result.content
    assert ended == ["tidied up"]


class Stubborn:
    """Awaits a future that never resolves, and swallows its first `times` cancellations."""

    def __init__(self, times: float) -> None:
        self.times = times
        self.swallowed = 0
        self.release = anyio.Event()
        self.ended = anyio.Event()

    async def run(self, arguments: JsonObject, context: object) -> str:
        try:
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except BaseException:
                    self.swallowed += 1
                    if self.swallowed > self.times:
                        raise
            return "late"
        finally:
            self.ended.set()


QUICK = CallLimits(grace_s=0.1, stop_grace_s=0.05)


async def test_a_tool_that_swallows_one_cancellation_is_ended_all_the_same(
    strays: TaskGroup,
) -> None:
    # openclaw/openclaw#128851
    stubborn = Stubborn(times=1)
    tool = FunctionTool("stuck", stubborn.run, timeout_s=0.05)
    done, _ = await run([tool], [call("stuck")], strays=strays, limits=QUICK)
    assert done[0].result.status == "timeout"
    assert "did not stop" not in done[0].result.content
    assert stubborn.ended.is_set()


async def test_a_tool_that_never_ends_is_left_behind_and_costs_nothing(strays: TaskGroup) -> None:
    # openclaw/openclaw#92270. anyio delivers a scope's cancellation anew in each step of the
    # event loop: a tool that swallows it would keep a processor busy until it ends.
    stubborn = Stubborn(times=float("inf"))
    tool = FunctionTool("stuck", stubborn.run, timeout_s=0.05)
    calls = [call("stuck")]
    journal = journal_for(calls)
    toolbox = Toolbox(registry=ToolRegistry([tool]), strays=strays, limits=QUICK)
    done = await toolbox.run(calls, journal=journal, watcher=Notes(), place=PLACE)
    assert done[0].result.status == "timeout"
    assert "may still be at work" in done[0].result.content
    assert toolbox.left_behind == ("stuck",)
    assert journal.results["c1"].status == "timeout"
    assert not stubborn.ended.is_set()
    before = time.process_time(), stubborn.swallowed
    await anyio.sleep(0.5)
    assert time.process_time() - before[0] < 0.1
    assert stubborn.swallowed - before[1] <= 1
    stubborn.release.set()
    await stubborn.ended.wait()
    await anyio.sleep(0.01)
    assert not toolbox.left_behind


async def test_the_group_that_owns_strays_can_be_cancelled_without_a_spin() -> None:
    stubborn = Stubborn(times=float("inf"))
    tool = FunctionTool("stuck", stubborn.run, timeout_s=0.05)
    used: list[float] = []
    async with anyio.create_task_group() as outer, anyio.create_task_group() as strays:
        await run([tool], [call("stuck")], strays=strays, limits=QUICK)

        async def let_go() -> None:
            began = time.process_time()
            await anyio.sleep(0.4)
            used.append(time.process_time() - began)
            stubborn.release.set()

        outer.start_soon(let_go)
        strays.cancel_scope.cancel()
    assert used[0] < 0.1


async def test_a_stop_ends_the_running_calls_and_keeps_what_is_done(strays: TaskGroup) -> None:
    # HKUDS/nanobot#2526
    turn, tidied = anyio.CancelScope(), anyio.Event()
    calls = [call("find", "a"), call("hang", "b")]
    journal = journal_for(calls)

    async def hang(arguments: JsonObject, context: object) -> str:
        try:
            await journal.wait_result("a")
            turn.cancel()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            tidied.set()
        return ""

    tools = [saying("find", "found"), FunctionTool("hang", hang)]
    with turn:
        await run(tools, calls, strays=strays, journal=journal)
    assert turn.cancelled_caught
    assert tidied.is_set()
    assert set(journal.results) == {"a"}
    journal.closed("stopped", "stopped")
    assert journal.transcript[2].content == "found"


async def test_a_stop_does_not_wait_for_a_tool_that_will_not_end(strays: TaskGroup) -> None:
    turn, stubborn = anyio.CancelScope(), Stubborn(times=float("inf"))

    async def stuck(arguments: JsonObject, context: object) -> str:
        turn.cancel()
        return await stubborn.run(arguments, context)

    with turn:
        await run([FunctionTool("stuck", stuck)], [call("stuck")], strays=strays)
    assert turn.cancelled_caught
    assert stubborn.swallowed == 1
    assert not stubborn.ended.is_set()
    stubborn.release.set()


async def test_a_result_that_comes_in_answer_to_a_stop_is_kept(strays: TaskGroup) -> None:
    turn = anyio.CancelScope()

    async def half(arguments: JsonObject, context: object) -> str:
        turn.cancel()
        try:
            await anyio.sleep_forever()
        except BaseException:
            return "half of it"
        return ""

    journal = journal_for([call("half")])
    with turn:
        await run([FunctionTool("half", half)], [call("half")], strays=strays, journal=journal)
    assert turn.cancelled_caught
    assert journal.results["c1"].content == "half of it"


async def test_when_the_turn_was_closed_the_other_calls_are_ended_and_that_is_raised(
    strays: TaskGroup,
) -> None:
    running, ended = anyio.Event(), anyio.Event()

    async def hang(arguments: JsonObject, context: object) -> str:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    async def find(arguments: JsonObject, context: object) -> str:
        await running.wait()
        return "found"

    calls = [call("hang", "a"), call("find", "b")]
    journal = journal_for(calls)
    journal.ended_after = 2  # both have started; the first result meets the fence
    with pytest.raises(TurnEnded):
        await run(
            [FunctionTool("hang", hang), FunctionTool("find", find)],
            calls,
            strays=strays,
            journal=journal,
        )
    assert ended.is_set()


async def test_a_waiting_call_s_deadline_stands_still(strays: TaskGroup) -> None:
    waits: list[str] = []

    @asynccontextmanager
    async def waiting(what: str) -> AsyncIterator[None]:
        waits.append(what)
        yield
        waits.append("over")

    async def ask(arguments: JsonObject, context: object) -> str:
        async with context.waiting("a person"):  # type: ignore[attr-defined]
            await anyio.sleep(0.3)
        return "yes"

    async def ask_and_dawdle(arguments: JsonObject, context: object) -> str:
        await ask(arguments, context)
        await anyio.sleep_forever()
        return ""

    place = RunPlace(session_key=PLACE.session_key, turn_id="t", waiting=waiting)
    tools = [
        FunctionTool("ask", ask, timeout_s=0.1),
        FunctionTool("dawdle", ask_and_dawdle, timeout_s=0.1),
    ]
    calls = [call("ask", "a"), call("dawdle", "b")]
    done, _ = await run(tools, calls, strays=strays, place=place)
    assert [one.result.status for one in done] == ["ok", "timeout"]
    assert waits == ["a person", "a person", "over", "over"]


async def test_a_tool_knows_its_turn_and_can_show_progress(strays: TaskGroup) -> None:
    caller: ContextVar[str] = ContextVar("caller")
    caller.set("this turn")
    seen: list[object] = []

    async def look(arguments: JsonObject, context: object) -> str:
        seen.extend((context.session_key, context.turn_id, context.call_id, caller.get()))  # type: ignore[attr-defined]
        context.progress("half way")  # type: ignore[attr-defined]
        return "ok"

    notes = Notes()
    await run([FunctionTool("look", look)], [call("look")], strays=strays, notes=notes)
    assert seen == [PLACE.session_key, "t1", "c1", "this turn"]
    assert notes.phases == [("tool", "look"), ("tool", "look: half way")]


async def test_an_approval_that_breaks_allows_nothing(strays: TaskGroup) -> None:
    class Broken:
        async def refusal(self, *_: object) -> str | None:
            raise RuntimeError("no database")

    calls = [call("find")]
    journal = journal_for(calls)
    registry = ToolRegistry([saying("find", "found")])
    toolbox = Toolbox(registry=registry, strays=strays, approval=Broken())
    done = await toolbox.run(calls, journal=journal, watcher=Notes(), place=PLACE)
    assert done[0].result.status == "error"
    assert journal.events == ["finished find error"]


async def test_a_broken_schema_is_the_tool_s_fault_and_breaks_nothing_else(
    strays: TaskGroup,
) -> None:
    broken = FunctionTool("odd", saying("x", "x").run, parameters={"type": "object", "required": 3})
    done, _ = await run(
        [broken, saying("find", "found")], [call("odd", "a"), call("find", "b")], strays=strays
    )
    assert [one.result.status for one in done] == ["error", "ok"]
    assert "broken" in done[0].result.content
