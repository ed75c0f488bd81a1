"""`/v1/status`, `/healthz`, `/v1/shutdown`, and problems in general."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import anyio
import pytest

from teaagentd import __version__
from teaagentd.testing import MemoryChannel, ScriptedModel
from teaagentd.types import LLMRequest
from tests.web.rig import Rig, serving, until

pytestmark = pytest.mark.anyio

CANARY = "sk-canary-0123456789abcdef"


async def test_status_tells_what_the_daemon_is_doing(tmp_path: Path) -> None:
    async def hang(request: LLMRequest) -> str:
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel(default=hang, name="scripted", model="tea-1")
    channel = MemoryChannel("memory")
    channel.hold = anyio.Event()
    settings = {
        "agent": {"max_concurrent_turns": 1},
        "provider": {"type": "openai", "api_key": CANARY},
    }
    async with serving(tmp_path, model, settings=settings, channels=[channel]) as rig:
        await rig.accepted("/help", "room", channel="memory")
        await rig.accepted("first", "one")
        await model.wait_asked(1)
        await rig.accepted("second", "two")
        await until(lambda: len(rig.daemon.loop.live()) == 2)
        answer = await rig.client.get("/v1/status")
    status = answer.json()
    assert status["version"] == __version__
    assert status["uptime_s"] >= 0
    assert status["draining"] is False
    assert status["provider"] == {"name": "scripted", "model": "tea-1"}
    first, second = status["turns"]
    assert (first["session_key"], first["phase"], first["origin"]) == ("api:one", "thinking", "bus")
    assert (second["session_key"], second["phase"]) == ("api:two", "waiting")
    assert first["age_ms"] >= first["phase_age_ms"] >= 0
    assert status["slots"] == {"limit": 1, "held": 1, "waiting": 1, "parked": 0}
    assert status["inbox"]["depth"] == 1
    assert status["inbox"]["oldest_age_ms"] >= 0
    assert status["outbox"]["depth"] == 1
    assert (status["dead_rows"], status["dead_letters"]) == (0, 0)
    assert [(one["name"], one["state"]) for one in status["channels"]] == [("memory", "running")]
    assert CANARY not in answer.text


async def test_health_depends_on_the_writer(tmp_path: Path) -> None:
    async with serving(tmp_path, work=False) as rig:
        assert (await rig.client.get("/healthz")).json() == {"status": "ok"}
        await rig.daemon.store.aclose()
        answer = await rig.client.get("/healthz")
        assert answer.status_code == 503
        assert answer.json()["type"] == "/problems/unhealthy"


async def test_a_store_that_keeps_nothing_is_told_of(tmp_path: Path) -> None:
    async with serving(tmp_path, work=False) as rig:
        await rig.daemon.store.aclose()
        for answer in (await rig.post("hello"), await rig.client.get("/v1/sessions")):
            assert answer.status_code == 503
            assert answer.json()["type"] == "/problems/store-unavailable"
            assert int(answer.headers["retry-after"]) > 0
        polled = await rig.client.get("/v1/replies", params={"session_key": "c", "wait": "5"})
        assert polled.status_code == 503


async def test_shutdown_is_asked_for_once(tmp_path: Path) -> None:
    release = anyio.Event()

    async def wait(request: LLMRequest) -> str:
        await release.wait()
        return "done at last"

    model = ScriptedModel(default=wait)
    async with serving(tmp_path, model) as rig:
        await rig.accepted("hello")
        await model.wait_asked(1)
        wrong = await rig.client.post("/v1/shutdown", json={"force": "please"})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "force")
        assert (await rig.client.get("/v1/status")).json()["draining"] is False
        for body in (b"", b"{}", b'{"force": false}'):
            answer = await rig.client.post("/v1/shutdown", content=body)
            assert answer.status_code == 202
            (line,) = answer.json()["waits_for"]
            assert line.startswith("api:c: ")
        assert (await rig.client.get("/v1/status")).json()["draining"] is True
        release.set()
        with anyio.fail_after(10):
            (reply,) = await rig.replies(wait=10)
        assert reply["content"] == "done at last"


async def test_shutdown_ends_a_serving_daemon(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.ask("hello")
        status: list[int] = []

        async def serve() -> None:
            status.append(await rig.daemon.serve())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            with anyio.fail_after(10):
                answer = await rig.client.post("/v1/shutdown")
                assert answer.status_code == 202
            await until(lambda: status)
    assert status == [0]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/messages/", 404),
        ("GET", "/v1/sessions/", 404),
        ("GET", "/v1/messages", 405),
        ("PUT", "/v1/sessions/api:c", 405),
        ("GET", "/v1/shutdown", 405),
        ("POST", "/v1/sessions/api:c%2Fstop", 405),
        ("POST", "/healthz", 405),
    ],
)
async def test_every_refusal_is_a_problem(idle: Rig, method: str, path: str, status: int) -> None:
    answer = await idle.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert problem["title"]
    assert problem["detail"]
    assert ("allow" in answer.headers) == (status == 405)


async def test_what_breaks_is_logged_and_not_shown(
    idle: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(idle.daemon, "gate", CANARY)
    with caplog.at_level(logging.ERROR):
        answer = await idle.client.get("/v1/status")
    assert answer.status_code == 500
    assert answer.json()["status"] == 500
    assert CANARY not in answer.text
    assert "Traceback" not in answer.text
    assert "AttributeError" in caplog.text
    assert (await idle.client.get("/healthz")).status_code == 200


async def test_an_answer_is_given_while_the_writer_is_busy(tmp_path: Path) -> None:
    """A slow disk holds up what must be kept, not the reading of status."""
    busy, release = threading.Event(), threading.Event()

    def on_commit(name: str, moment: str) -> None:
        if (name, moment) == ("T0.accept", "before"):
            busy.set()
            release.wait(10)

    async with (
        serving(tmp_path, work=False, on_commit=on_commit) as rig,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(rig.accepted)
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync(busy.wait)
            assert (await rig.client.get("/v1/status")).status_code == 200
            assert await rig.replies() == []
        release.set()
