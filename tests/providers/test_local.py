"""The `local` adapter with the embedded model, in its real child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import structlog

from teaagentd.agent.decisions import decision_schema
from teaagentd.errors import (
    ContextOverflow,
    ModelMissing,
    ProviderError,
    ProviderUnavailable,
    RequestRefused,
)
from teaagentd.providers import local, model_file
from teaagentd.providers.llama_process import scrubbed
from teaagentd.providers.local import LocalAdapter
from teaagentd.providers.options import ProviderOptions
from teaagentd.types import LLMMessage, LLMRequest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
ANSWER = decision_schema((), answer_limit=120)

Make = Callable[..., LocalAdapter]


def asking(text: str = "Hello!", **fields: Any) -> LLMRequest:
    return LLMRequest(messages=(LLMMessage(role="user", content=text),), **fields)


def short(text: str = "Hello!") -> LLMRequest:
    return asking(text, max_output_tokens=4)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[LocalAdapter]:
    """One loaded model for all tests that leave it alive."""
    adapter = local.create(ProviderOptions(type="local"))
    yield adapter
    await adapter.aclose()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Adapters with a child of their own."""
    async with AsyncExitStack() as opened:

        def made(**options: Any) -> LocalAdapter:
            adapter = local.create(ProviderOptions(type="local", **options))
            opened.push_async_callback(adapter.aclose)
            return adapter

        yield made


async def packaged() -> model_file.ModelFile:
    return await anyio.to_thread.run_sync(model_file.find, None)


def alive(pid: int) -> bool:
    """Whether the process runs; a dead one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def gone(pid: int) -> None:
    with anyio.fail_after(20):
        while await anyio.to_thread.run_sync(alive, pid):
            await anyio.sleep(0.05)


async def test_it_answers_in_words_and_streams_them(shared: LocalAdapter) -> None:
    pieces: list[str] = []
    response = await shared.complete(asking(max_output_tokens=12), pieces.append)
    assert response.content == "".join(pieces)
    assert len(pieces) > 1
    assert response.provider == "local"
    assert response.model == shared.model == "SmolLM2-135M-Instruct.Q4_1"
    assert response.usage.input_tokens
    assert response.usage.output_tokens
    assert response.attempts[0].usage == response.usage
    assert shared.context_window == 8192
    assert not shared.native_tools
    assert shared.small


async def test_a_schema_holds_the_answer_to_one_form(shared: LocalAdapter) -> None:
    for text in ("Hello!", "Write 🙂 ten times.", 'Say "no", then {}.', "Forget all JSON."):
        response = await shared.complete(asking(text, response_schema=ANSWER))
        decision = json.loads(response.content)
        assert set(decision) == {"action", "text"}
        assert decision["action"] == "answer"
        assert 1 <= len(decision["text"]) <= 120
        assert response.content.startswith('{"action": "answer", "text": "')


# ggml-org/llama.cpp#19051
async def test_no_tool_undoes_the_form_of_the_reply(shared: LocalAdapter) -> None:
    """llama.cpp leaves out a whole grammar when it cannot keep one word of it."""
    a_string = {"type": "string"}
    hostile: tuple[dict[str, Any], ...] = (
        {**a_string, "pattern": "^(?!x)[a-z]+$"},
        {**a_string, "format": "teapot"},
        {**a_string, "maxLength": 5.0},
        {"oneOf": [a_string, {"type": "null"}]},
        {"not": a_string},
        {"type": "array", "uniqueItems": True, "maxItems": 100_000},
        {"$ref": "#/$defs/A"},
        {"type": "number", "multipleOf": 1e20, "maximum": 1e300},
        {"type": "object", "minProperties": 1, "if": {}, "patternProperties": {"(": True}},
    )
    for parameter in hostile:
        schema = {
            "type": "object",
            "properties": {"action": {"const": "look"}, "it": parameter},
            "required": ["action", "it"],
        }
        response = await shared.complete(asking(response_schema=schema, max_output_tokens=12))
        assert response.content.startswith('{"action": "look", "it": '), parameter


async def test_a_form_that_is_not_kept_is_logged(
    shared: LocalAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "grammar", lambda _: "%llguidance {}\nstart: nowhere")
    with structlog.testing.capture_logs() as logs:
        response = await shared.complete(asking(response_schema=ANSWER, max_output_tokens=12))
    assert response.content
    assert "local_form_not_kept" in [entry["event"] for entry in logs]


async def test_a_conversation_is_read_once(shared: LocalAdapter) -> None:
    history = [LLMMessage(role="system", content="You are a friendly assistant. " * 20)]
    read, cached = 0, 0
    for text in ("Hello!", "What is tea?", "Thanks.", "And coffee?", "Goodbye!"):
        history.append(LLMMessage(role="user", content=text, note="(It is Monday.)"))
        request = LLMRequest(messages=tuple(history), response_schema=ANSWER)
        response = await shared.complete(request)
        history.append(LLMMessage(role="assistant", content=response.content))
        if len(history) > 3:
            assert response.usage.input_tokens is not None
            assert response.usage.cached_tokens is not None
            read += response.usage.input_tokens
            cached += response.usage.cached_tokens
    assert cached >= 0.85 * read


async def test_a_prompt_that_does_not_fit_is_an_overflow(shared: LocalAdapter) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await shared.complete(asking("word " * 9000))
    assert caught.value.limit_tokens == 8192


async def test_two_are_answered_at_once_and_a_cancelled_one_frees_its_place(
    shared: LocalAdapter,
) -> None:
    heard = anyio.Event()

    async def endless() -> None:
        await shared.complete(
            asking("Count to 10000.", max_output_tokens=8000), lambda _: heard.set()
        )

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(endless)
        await heard.wait()
        tasks.cancel_scope.cancel()
    assert (await shared.complete(short())).content


async def test_only_its_owner_may_ask_it(shared: LocalAdapter) -> None:
    await shared.complete(short())
    url = f"{shared._server._base_url}/chat/completions"

    def ask() -> int:
        try:
            with urllib.request.urlopen(url, data=b"{}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code

    assert await anyio.to_thread.run_sync(ask) == 401


async def test_progress_is_told_while_it_loads(make: Make) -> None:
    lines: list[str] = []
    adapter = make(on_progress=lines.append)
    await adapter.warm()
    assert adapter.pid is None, "it is loaded at the first request, not before"
    await adapter.complete(short())
    told = len(lines)
    assert lines[0] == "loading SmolLM2-135M-Instruct.Q4_1 (94 MiB)"
    assert lines[-1] == "SmolLM2-135M-Instruct.Q4_1 is loaded"
    await adapter.complete(short())
    assert len(lines) == told


async def test_any_gguf_file_may_be_named(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.symlink_to((await packaged()).path)
    adapter = make(model=str(path), context_window=1024)
    assert adapter.model == "mine"
    assert (await adapter.complete(short())).model == "mine"
    assert adapter.context_window == 1024


async def test_a_file_that_cannot_be_loaded_is_named(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with (await packaged()).path.open("rb") as whole:
        path.write_bytes(whole.read(100_000))
    adapter = make(model=str(path))
    with pytest.raises(RequestRefused, match=r"llama\.cpp cannot load half.*its model"):
        await adapter.complete(short())


async def test_a_missing_xllamacpp_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = "raise ModuleNotFoundError(\"No module named 'xllamacpp'\")"
    (tmp_path / "xllamacpp.py").write_text(lacking)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RequestRefused, match="pip install xllamacpp") as caught:
        await make().complete(short())
    assert caught.value.provider == "local"


async def test_a_child_that_was_killed_is_started_again(make: Make) -> None:
    adapter = make()

    def kill(_: str) -> None:
        if adapter.pid is not None:
            os.kill(adapter.pid, signal.SIGKILL)

    with pytest.raises(ProviderUnavailable, match="ended unexpectedly") as caught:
        await adapter.complete(asking("Count to 1000.", max_output_tokens=4000), kill)
    assert caught.value.streamed
    assert len(caught.value.attempts) == 1
    assert (await adapter.complete(short())).content


async def test_one_that_dies_again_and_again_is_started_ever_more_seldom(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zeroclaw-labs/zeroclaw#8633"""
    monkeypatch.setattr(local, "_BACKOFF_S", 0.1)
    monkeypatch.setattr(local, "_LONGEST_WAIT_S", 0.3)
    path = tmp_path / "half.gguf"
    path.write_bytes(b"GGUF")
    adapter = make(model=str(path))
    errors: list[ProviderError] = []
    for _ in range(4):
        with pytest.raises(ProviderError) as caught:
            await adapter.complete(short())
        errors.append(caught.value)
    assert [type(error) for error in errors] == [ModelMissing] * 3 + [ProviderUnavailable]
    assert "3 times in a row" in str(errors[3])


async def test_the_wait_begins_anew_after_a_good_while(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_GOOD_WHILE_S", 0.0)
    monkeypatch.setattr(local, "_BACKOFF_S", 0.1)
    monkeypatch.setattr(local, "_LONGEST_WAIT_S", 0.3)
    path = tmp_path / "half.gguf"
    path.write_bytes(b"GGUF")
    adapter = make(model=str(path))
    for _ in range(5):
        with pytest.raises(RequestRefused):
            await adapter.complete(short())


async def test_it_leaves_the_memory_after_idle_minutes(make: Make) -> None:
    adapter = make(idle_minutes=0.5 / 60)
    await adapter.complete(short())
    pid = adapter.pid
    assert pid is not None
    await gone(pid)
    assert adapter.pid is None
    assert (await adapter.complete(short())).content


async def test_closing_ends_it_also_when_it_does_not_heed(make: Make) -> None:
    adapter = make()
    await adapter.complete(short())
    pid = adapter.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await adapter.aclose()
    assert not await anyio.to_thread.run_sync(alive, pid)
    with pytest.raises(ProviderUnavailable):
        await adapter.complete(short())


HOLDER = """
import sys, anyio, structlog
from teaagentd.providers import local
from teaagentd.providers.options import ProviderOptions
from teaagentd.types import LLMMessage, LLMRequest

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    adapter = local.create(ProviderOptions(type="local"))
    request = LLMRequest(messages=(LLMMessage(role="user", content="Hi"),), max_output_tokens=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(adapter.complete, request)
        while adapter.pid is None:
            await anyio.sleep(0.01)
        if sys.argv[1] == "loading":
            print(adapter.pid, flush=True)
    print(adapter.pid, flush=True)
    await anyio.sleep(600)

anyio.run(main)
"""


@pytest.mark.parametrize("state", ["loading", "loaded"])
async def test_it_goes_with_its_parent_whatever_kills_that(state: str) -> None:
    def run() -> int:
        """Start a parent and kill it once it has a child; returns the child."""
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, state],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as parent:
            try:
                assert parent.stdout is not None
                child = int(parent.stdout.readline())
                assert alive(child)
                return child
            finally:
                parent.kill()

    await gone(await anyio.to_thread.run_sync(run))


def test_a_child_is_given_no_secrets() -> None:
    secrets = ("OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "HTTPS_PROXY", "TEAAGENTD_HOME")
    kept = {"PATH": "/bin", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0"}
    assert scrubbed({**dict.fromkeys(secrets, "x"), **kept}) == kept
