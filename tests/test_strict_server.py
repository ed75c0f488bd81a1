"""The strict server of the tests is strict: what it lets pass is legal everywhere."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.strict_dialect import illegal
from tests.strict_server import ServerProcess


def user(content: Any = "q") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*ids: str, content: str | None = None, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [SYSTEM, user(), assistant("a", "b"), tool("a"), tool("b"), assistant(content="done")],
        [user(), assistant("a", content="one moment"), tool("a"), user(), user()],
    ],
)
def test_legal_messages_pass(messages: list[dict[str, Any]]) -> None:
    assert illegal(messages) is None


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "not empty"),
        ([SYSTEM], "no user message"),
        ([SYSTEM, assistant(content="hi"), user()], "first message"),
        ([user(), tool("a")], "without its call"),
        ([user(), assistant("a"), user()], "without a result"),
        ([user(), assistant("a", "b"), tool("a"), assistant(content="x")], "without a result"),
        ([user(), assistant("a")], "without a result"),
        ([user(), assistant("a"), tool("a"), tool("a")], "second result"),
        ([user(), assistant("a"), tool("a"), assistant("a"), tool("a")], "repeated"),
        ([user(), assistant("a", "a"), tool("a")], "repeated"),
        ([user(), assistant("", content="x")], "without an id"),
        ([user(), assistant("a", arguments='{"x": '), tool("a")], "not JSON"),
        ([user(), assistant("a", arguments="[]"), tool("a")], "no object"),
        ([user(), assistant(content="")], "empty assistant"),
        ([user(), {**assistant(content="x"), "tool_calls": []}], "empty list"),
        ([user("")], "empty user"),
        ([user([{"type": "text", "text": ""}])], "empty text block"),
        ([user(), SYSTEM], "after the first"),
        ([{**user(), "note": "n"}], "unknown fields"),
        ([{"role": "robot", "content": "x"}], "unknown role"),
    ],
)
def test_illegal_messages_are_told_apart(messages: list[dict[str, Any]], reason: str) -> None:
    assert reason in (illegal(messages) or "")


def ask(server: ServerProcess, *messages: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    try:
        with urllib.request.urlopen(f"{server.url}/chat/completions", body, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


def test_it_answers_as_scripted_and_echoes_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ServerProcess(["first", {"match": "now", "text": "matched"}], log=str(log)) as server:
        said = [
            ask(server, user(text))[1]["choices"][0]["message"]["content"]
            for text in ("a", "b", "what now?")
        ]
        assert said == ["first", "echo: b", "matched"]
        assert ask(server, tool("a"))[0] == 400
        marked = user('[[beside:wait]] [[tool:look {"x": 1}]]')
        message = ask(server, marked)[1]["choices"][0]["message"]
        [call] = message["tool_calls"]
        assert message["content"] == "wait"
        assert json.loads(call["function"]["arguments"]) == {"x": 1}
        round_of = (marked, assistant(call["id"]), tool(call["id"]))
        final = ask(server, *round_of)[1]["choices"][0]["message"]["content"]
        assert final.startswith("echo: [[beside")
        assert final.endswith("; results: r")
        assert server.stats["illegal"] == 1
        assert [request["refused"] is None for request in server.requests].count(False) == 1
    assert len(log.read_text().splitlines()) == 6


def test_it_ends_with_whoever_started_it() -> None:
    with ServerProcess() as server:
        process = server._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() == 0
