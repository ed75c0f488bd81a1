"""Files through the real daemon: handed in, shown to the model, over a kill, gone when erased."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.daemon.conftest import MakeDaemon, Model
from tests.daemon.test_refusals import is_problem
from tests.daemon_process import DaemonProcess
from tests.providers.test_pictures import RED
from tests.strict_dialect import pictures_of


def hand_in(daemon: DaemonProcess, data: bytes, name: str) -> dict[str, str]:
    answer = daemon.upload(f"/v1/files?name={name}", data)
    assert answer.status == 201, answer
    return {"id": answer.json["id"], "name": name}


def seen(model: Model) -> list[bytes]:
    return pictures_of(model.requests[-1])


def test_a_picture_is_shown_now_and_after_a_kill(daemon: DaemonProcess, model: Model) -> None:
    red = hand_in(daemon, RED, "red.png")
    daemon.ask("anna", "what is this?", attachments=[red])
    assert seen(model) == [RED]
    daemon.kill()
    daemon.start()
    daemon.ask("anna", "and what was it?")
    assert seen(model) == [RED]


def test_a_picture_may_come_without_a_word(daemon: DaemonProcess, model: Model) -> None:
    daemon.ask("anna", "", attachments=[hand_in(daemon, RED, "red.png")])
    assert seen(model) == [RED]


def test_a_file_is_kept_out_of_the_transcript_and_given_back(daemon: DaemonProcess) -> None:
    red = hand_in(daemon, RED, "red.png")
    daemon.ask("anna", "what is this?", attachments=[red])
    (row,) = daemon.query("SELECT attachments FROM messages WHERE attachments IS NOT NULL")
    assert red["id"] in str(row[0])
    assert "base64" not in str(row[0])
    listed = daemon.session("api:anna")["messages"][0]["attachments"]
    assert [(one["id"], one["name"]) for one in listed] == [(red["id"], "red.png")]
    assert daemon.call("GET", f"/v1/files/{red['id']}").status == 200


def test_what_is_not_here_is_refused(daemon: DaemonProcess, model: Model) -> None:
    missing = [{"id": f"{'0' * 64}.png", "name": "x"}]
    answer = daemon.call(
        "POST", "/v1/messages", {"chat_id": "a", "content": "x", "attachments": missing}
    )
    is_problem(answer, 422)
    assert answer.json["field"] == "attachments"
    is_problem(daemon.upload("/v1/files?name=x.png", RED[:40]), 422)
    is_problem(daemon.call("GET", "/v1/files/..%2Fstate.db"), 404)
    assert daemon.ask("a", "hello")
    assert model.requests


def test_what_is_erased_is_gone_from_the_disk(daemon: DaemonProcess) -> None:
    red = hand_in(daemon, RED, "red.png")
    daemon.ask("anna", "what is this?", attachments=[red])
    place = Path(daemon.home) / "files" / red["id"]
    os.utime(place, (time.time() - 1000,) * 2)
    assert daemon.call("DELETE", "/v1/sessions/api:bert").status in (200, 404)
    assert place.exists()
    assert daemon.call("DELETE", "/v1/sessions/api:anna").status == 200
    assert not place.exists()


@pytest.fixture
def two(make_daemon: MakeDaemon, model: Model) -> DaemonProcess:
    """A model, and one that stands in for it."""
    daemon = make_daemon(
        {
            "TEAAGENTD_PROVIDER__FALLBACKS": '["spare"]',
            "TEAAGENTD_PROVIDERS__SPARE__TYPE": "openai",
            "TEAAGENTD_PROVIDERS__SPARE__MODEL": "spare-1",
            "TEAAGENTD_PROVIDERS__SPARE__BASE_URL": model.url,
        }
    )
    daemon.start()
    return daemon


def test_the_one_that_stands_in_and_sees_nothing_is_asked_without(
    two: DaemonProcess, model: Model
) -> None:
    no_credit = {"status": 402, "body": {"error": {"message": "no credit"}}}
    blind = {"status": 400, "body": {"error": {"message": "image input is not supported"}}}
    model.script([{**no_credit, "match": "what"}, {**blind, "match": "what"}])
    two.ask("anna", "what is this?", attachments=[hand_in(two, RED, "red.png")])
    bodies = model.requests
    assert [body["model"] for body in bodies] == ["strict", "spare-1", "spare-1"]
    assert [bool(pictures_of(body)) for body in bodies] == [True, True, False]
