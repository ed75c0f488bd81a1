"""Long histories: made to fit between turns and within them; the transcript keeps all."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from teaagentd.abc import ToolContext
from teaagentd.agent.compaction import LEFT_OUT, PURPOSE
from teaagentd.errors import ContextOverflow, ProviderUnavailable, StoreUnavailable
from teaagentd.store.transcripts import SUMMARY_NOTE
from teaagentd.testing import Scripted, ScriptedModel
from teaagentd.transcript import estimate_request_tokens
from teaagentd.types import JsonObject, LLMRequest, LLMResponse, SessionKey, ToolSpec, Usage
from tests.core.rig import Rig, running
from tests.core.test_loop import Blocking, call, held, texts

pytestmark = pytest.mark.anyio

WINDOW = 4000
KEY = SessionKey(channel="api", chat_id="c")
LONG = "word " * 300
"""About 500 tokens, as they are estimated."""


def strict(
    *replies: Scripted, window: int = WINDOW, summary: Scripted = "The summary."
) -> ScriptedModel:
    """A model that refuses what is longer than its window, gives `summary` to who asks for one,
    and `replies` to the rest, then "ok"."""
    left = list(replies)

    async def answer(request: LLMRequest) -> Scripted:
        if estimate_request_tokens(request.messages, request.tools) > window:
            return ContextOverflow("too long")
        if request.purpose == PURPOSE:
            return summary
        return left.pop(0) if left else "ok"

    return ScriptedModel(default=answer, context_window=window)


def summaries(model: ScriptedModel) -> list[LLMRequest]:
    return [request for request in model.requests if request.purpose == PURPOSE]


def last_turn(model: ScriptedModel) -> LLMRequest:
    return [request for request in model.requests if request.purpose != PURPOSE][-1]


async def talk(rig: Rig, *contents: str) -> None:
    for content in contents:
        await rig.reply_to(await rig.say(content))
        await rig.quiet()
        assert await rig.loop.wait_background(10)


async def until_due(rig: Rig, model: ScriptedModel) -> None:
    """Talk until a summary is asked for."""
    number = 0
    while not summaries(model):
        await rig.reply_to(await rig.say(f"{number} {LONG}"))
        await rig.quiet()
        while rig.loop._background and not summaries(model):
            await anyio.sleep(0.001)
        number += 1


async def contents_of(rig: Rig) -> list[str]:
    return [message.content for message in await rig.store.transcript(KEY, limit=1000)]


async def test_a_long_conversation_goes_on_and_its_transcript_stays_whole(tmp_path: Path) -> None:
    """Never refused, however long it gets; and no request is longer than the window."""
    model = strict()
    said = [f"{number} {LONG}" for number in range(30)]
    async with running(tmp_path, model) as rig:
        await talk(rig, *said)
        assert [one for one in await contents_of(rig) if one != "ok"] == said
        assert all(reply.content == "ok" for reply in await rig.replies())
    assert len(summaries(model)) > 2
    assert not model.refused
    latest = last_turn(model).messages
    assert (latest[1].note, latest[1].content) == (SUMMARY_NOTE, "The summary.")
    assert texts(last_turn(model))[-1] == said[-1]


async def test_it_goes_on_from_the_summary_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, strict()) as rig:
        await talk(rig, *(f"{number} {LONG}" for number in range(8)))
    model = strict()
    async with running(tmp_path, model) as rig:
        await talk(rig, "and now?")
        assert len(await contents_of(rig)) == 18
    assert last_turn(model).messages[1].note == SUMMARY_NOTE
    assert "0 word" not in str(last_turn(model).messages)


async def test_a_summary_has_no_tools_and_tells_what_it_is_made_of(tmp_path: Path) -> None:
    tool = Blocking()
    tool.let_go.set()
    model = strict(call())
    async with running(tmp_path, model, tools=[tool]) as rig:
        await talk(rig, "use it", *(f"{number} {LONG}" for number in range(8)))
    first = summaries(model)[0]
    assert not first.tools
    told = first.messages[-1].content
    assert "use it" in told
    assert "calls block" in told
    assert "let go" in told
    assert "0 word" in told


@pytest.mark.parametrize(
    "summary",
    [
        "",
        "<think>what a pity</think>",
        call(),
        "word " * 20_000,
        LLMResponse(content="cut o", finish_reason="length", provider="scripted"),
        ProviderUnavailable("gone"),
    ],
)
async def test_without_a_usable_summary_the_history_is_as_it_was(
    tmp_path: Path, summary: Scripted
) -> None:
    model = strict(summary=summary)
    async with running(tmp_path, model) as rig:
        number = 0
        while not summaries(model):
            await talk(rig, f"{number} {LONG}")
            number += 1
        await talk(rig, "and now?")
        assert len(await contents_of(rig)) == 2 * number + 2
    assert texts(last_turn(model))[0].startswith("0 word")


async def test_after_several_failures_the_oldest_are_left_out_and_that_is_said(
    tmp_path: Path,
) -> None:
    model = strict(summary="")
    async with running(tmp_path, model) as rig:
        await talk(rig, *(f"{number} {LONG}" for number in range(20)))
        assert all(reply.content == "ok" for reply in await rig.replies())
        assert len(await contents_of(rig)) == 40
    assert last_turn(model).messages[1].content == LEFT_OUT


async def test_a_turn_that_outgrows_the_window_is_made_to_fit(tmp_path: Path) -> None:
    """The server knows its window better: it is half of what it was said to be."""
    model = strict(window=WINDOW // 2)
    model.context_window = WINDOW
    async with running(tmp_path, model) as rig:
        await talk(rig, *(f"{number} {LONG}" for number in range(12)))
        assert all(reply.content == "ok" for reply in await rig.replies())


class Flood:
    """A tool with much to say."""

    timeout_s: float | None = None
    spec = ToolSpec(name="block", description="x", parameters={"type": "object", "properties": {}})

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        return "begin " + "word " * 6000 + " end"


async def test_a_result_longer_than_the_window_is_shown_in_part(tmp_path: Path) -> None:
    model = strict(call())
    async with running(tmp_path, model, tools=[Flood()]) as rig:
        await talk(rig, LONG, "look", "and now?")
        assert [reply.content for reply in await rig.replies()] == ["ok"] * 3
        kept = [len(one) for one in await contents_of(rig)]
    assert max(kept) > 30_000, "the transcript has the whole"
    shown = [
        message.content
        for request in model.requests
        for message in request.messages
        if message.role == "tool" and "left out" in message.content
    ]
    assert shown
    assert shown[0].startswith("begin")
    assert shown[0].endswith("end")


async def test_what_comes_while_a_summary_is_made_stays_behind_it(tmp_path: Path) -> None:
    """It is put in place before the next turn, and only what it tells of goes."""
    go = anyio.Event()
    model = strict(summary=held("The summary.", go))
    async with running(tmp_path, model) as rig:
        await until_due(rig, model)
        await rig.reply_to(await rig.say("meanwhile"))
        await rig.quiet()
        assert texts(last_turn(model))[0].startswith("0 word"), "not yet in place"
        go.set()
        assert await rig.loop.wait_background(10)
        await talk(rig, "next")
    assert texts(last_turn(model))[-2:] == ["meanwhile", "next"]
    assert last_turn(model).messages[1].note == SUMMARY_NOTE


async def test_a_summary_of_a_conversation_that_was_left_is_dropped(tmp_path: Path) -> None:
    go = anyio.Event()
    model = strict(summary=held("The summary.", go))
    async with running(tmp_path, model) as rig:
        await until_due(rig, model)
        await rig.reply_to(await rig.say("/new"))
        go.set()
        assert await rig.loop.wait_background(10)
        await talk(rig, "hello")
    assert texts(last_turn(model)) == ["hello"]


async def test_it_can_be_asked_for(tmp_path: Path) -> None:
    model = ScriptedModel(["hi", "hi again", "The summary.", "ok"])
    async with running(tmp_path, model) as rig:
        await talk(rig, "one " + LONG, "two")
        asked = await rig.say("/compact")
        assert "summary" in (await rig.reply_to(asked)).content
        assert await rig.loop.wait_background(10)
        await talk(rig, "three")
        assert len(await contents_of(rig)) == 6
    assert texts(model.requests[-1]) == ["The summary.", "three"]


async def test_the_requests_of_a_summary_are_booked(tmp_path: Path) -> None:
    async with running(tmp_path, strict()) as rig:
        await talk(rig, *(f"{number} {LONG}" for number in range(8)))
        rows = await rig.store._read(
            lambda connection: connection.execute(
                "SELECT count(*) FROM usage WHERE purpose = ?", (PURPOSE,)
            ).fetchone()
        )
    assert rows[0] >= 1


@pytest.mark.parametrize("sign", ["茶", "🍵", "8", "QUJD"])
async def test_h12_what_takes_many_tokens_is_never_refused(tmp_path: Path, sign: str) -> None:
    """A server that counts a token for each sign (of base64 and digits for each two letters),
    and its prompt and tools too; the usage that it reports is the base of what is counted."""

    def count(request: LLMRequest) -> int:
        text = "".join(f"{message.note}{message.content}" for message in request.messages)
        ascii_part = sum(character.isascii() for character in text)
        tools = sum(len(str(tool.parameters)) for tool in request.tools)
        return len(text) - ascii_part + ascii_part // 2 + tools // 4

    refused = 0

    async def answer(request: LLMRequest) -> Scripted:
        nonlocal refused
        if count(request) > 8000:
            refused += 1
            return ContextOverflow("too long")
        text = "The summary." if request.purpose == PURPOSE else "ok"
        usage = Usage(input_tokens=count(request), output_tokens=2)
        return LLMResponse(content=text, usage=usage, provider="scripted")

    model = ScriptedModel(default=answer, context_window=8000)
    async with running(tmp_path, model) as rig:
        await talk(rig, *(f"{number}" + sign * 400 for number in range(30)))
        assert all(reply.content == "ok" for reply in await rig.replies())
    assert not refused
    assert summaries(model)


async def test_a_turn_that_is_at_work_is_no_part_of_a_summary(tmp_path: Path) -> None:
    """Asked for while a call runs: what the turn says and finds is told whole afterwards."""
    tool = Blocking()
    model = strict("hi", call())
    async with running(tmp_path, model, tools=[tool]) as rig:
        await talk(rig, "one " + LONG)
        working = await rig.say("use it")
        await tool.entered.wait()
        await rig.reply_to(await rig.say("/compact"))
        assert await rig.loop.wait_background(10)
        tool.let_go.set()
        await rig.reply_to(working)
        await talk(rig, "next")
    assert "use it" not in summaries(model)[0].messages[-1].content
    assert texts(last_turn(model)) == ["The summary.", "use it", "next"]
    assert texts(last_turn(model), "tool") == ["let go"]


async def test_a_disk_that_fails_costs_the_summary_and_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = strict()
    async with running(tmp_path, model) as rig:

        async def failing(*args: object, **kwargs: object) -> bool:
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(rig.store, "compact", failing)
        await talk(rig, *(f"{number} {LONG}" for number in range(7)))
        assert [reply.content for reply in await rig.replies()] == ["ok"] * 7
    assert summaries(model)


async def test_a_summary_that_breaks_takes_no_turn_with_it(tmp_path: Path) -> None:
    async def broken(request: LLMRequest) -> Scripted:
        raise RuntimeError("a bug of an adapter")

    model = strict(summary=broken)
    async with running(tmp_path, model) as rig:
        await talk(rig, "one " + LONG, "two")
        await rig.reply_to(await rig.say("/compact"))
        assert await rig.loop.wait_background(10)
        await talk(rig, "three")
    assert texts(last_turn(model))[-1] == "three"


async def test_asking_in_vain_leaves_nothing_out(tmp_path: Path) -> None:
    """Only a history that must be made shorter may lose what could not be told."""
    model = strict(summary="")
    async with running(tmp_path, model) as rig:
        await talk(rig, "my name is Bob", "two")
        for _ in range(5):
            await rig.reply_to(await rig.say("/compact"))
            assert await rig.loop.wait_background(10)
        await talk(rig, "who am I?")
    assert texts(last_turn(model))[0] == "my name is Bob"


async def test_h05_where_no_summary_helps_none_is_tried_again_and_again(tmp_path: Path) -> None:
    async def never(request: LLMRequest) -> Scripted:
        return "s" if request.purpose == PURPOSE else ContextOverflow("too long")

    model = ScriptedModel(default=never)
    async with running(tmp_path, model) as rig:
        await talk(rig, *(f"message {number}" for number in range(10)))
        assert all("/new" in reply.content for reply in await rig.replies())
    assert len(summaries(model)) <= 2
    assert len(model.requests) < 2 * 10


async def test_m03_new_takes_effect_beside_a_summary_and_nobody_waits_for_it(
    tmp_path: Path,
) -> None:
    """One summary at a time for a session, whatever is said. (HKUDS/nanobot#880, #1174)"""
    go = anyio.Event()
    model = strict(summary=held("The summary.", go))
    async with running(tmp_path, model) as rig:
        await until_due(rig, model)
        for word in ("more", "/compact", "/new", "/new", "/compact", "hi"):
            await rig.reply_to(await rig.say(word))
        assert (await rig.reply_to(await rig.say("hello", "other"))).content == "ok"
        await rig.quiet()
        assert len(summaries(model)) == 1
        assert texts(last_turn(model)) == ["hello"]
        go.set()
        assert await rig.loop.wait_background(10)
        before = len(model.requests)
        await talk(rig, "again")
        assert texts(model.requests[before]) == ["hi", "again"], "nothing of what was left"
        whole = [text for text in await contents_of(rig) if "word" in text]
        assert whole[0].startswith("0 word"), "the transcript is whole"


@pytest.mark.parametrize("junk", ["", "   ", "<think>all of it"])
async def test_m03_junk_for_a_summary_changes_nothing(tmp_path: Path, junk: str) -> None:
    model = strict(summary=junk)
    async with running(tmp_path, model) as rig:
        await until_due(rig, model)
        assert await rig.loop.wait_background(10)
        await talk(rig, "next")
    assert texts(last_turn(model))[0].startswith("0 word")


async def test_m03_an_end_while_a_summary_is_made_loses_only_the_summary(tmp_path: Path) -> None:
    model = strict(summary=held("never", anyio.Event()))
    async with running(tmp_path, model) as rig:
        await until_due(rig, model)
    again = strict()
    async with running(tmp_path, again) as rig:
        await talk(rig, "next", "and more")
        said = [text for text in await contents_of(rig) if text.endswith("word ")]
        assert said[0].startswith("0 word")
    assert again.requests
    assert not again.refused
