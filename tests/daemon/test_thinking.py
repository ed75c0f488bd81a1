"""A model of Anthropic's that thinks, behind the real daemon: its thoughts over kills and stops.

The strict server refuses a thought that is not, byte for byte, the one that it signed, and an open
round without one (openclaw/openclaw#97645, earendil-works/pi#9391).
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from teaagentd.transcript import SUMMARY_NOTE
from tests.daemon.conftest import Effects, MakeDaemon, Model
from tests.daemon_process import DaemonProcess, until

THOUGHT = "The user wants it counted.\n🍵 \u2028 so I count."


@pytest.fixture
def claude(make_daemon: MakeDaemon) -> DaemonProcess:
    daemon = make_daemon(
        {
            "TEAAGENTD_PROVIDER__TYPE": "anthropic",
            "TEAAGENTD_PROVIDER__MODEL": "claude-x",
            "TEAAGENTD_PROVIDER__REASONING": "2048",
        }
    )
    daemon.start()
    return daemon


def calling(name: str, token: str, **more: Any) -> dict[str, Any]:
    call = {"id": "toolu_a", "name": name, "arguments": {"token": token}}
    return {"reasoning": THOUGHT, "calls": [call], **more}


def thoughts(body: dict[str, Any]) -> int:
    return sum(
        block["type"] == "thinking"
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    )


def test_a_round_goes_on_with_its_thought_after_a_kill(
    claude: DaemonProcess, model: Model, effects: Effects
) -> None:
    held = {"id": "toolu_b", "name": "hold", "arguments": {"name": "gate"}}
    model.script([{"reasoning": THOUGHT, "calls": [held]}, {"text": "All done."}])
    asked = claude.post("anna", "count it")
    effects.wait("hold gate")
    claude.kill()
    claude.start()
    assert claude.answer("api:anna", asked)["content"] == "All done."
    assert thoughts(model.requests[-1]) == 1
    assert model.requests[-1]["thinking"]["type"] == "enabled"


def test_the_prefix_stays_the_same_from_turn_to_turn_and_over_a_restart(
    claude: DaemonProcess, model: Model
) -> None:
    model.script([calling("count", "a"), "Counted."])
    assert claude.ask("anna", "count it") == "Counted."
    claude.terminate()
    claude.start()
    claude.ask("anna", "and now?")
    sent = [orjson.dumps(body["messages"])[:-1] for body in model.requests]
    assert len(sent) == 3
    assert sent[1].startswith(sent[0])
    assert sent[2].startswith(sent[1])
    assert thoughts(model.requests[-1]) == 1


def test_another_model_is_not_sent_the_thoughts_and_the_first_gets_them_again(
    claude: DaemonProcess, model: Model
) -> None:
    model.script([calling("count", "a"), "Counted."])
    claude.ask("anna", "count it")
    for name, count in (("claude-y", 0), ("claude-x", 1)):
        claude.terminate()
        claude.start({"TEAAGENTD_PROVIDER__MODEL": name})
        claude.ask("anna", f"as {name}")
        assert thoughts(model.requests[-1]) == count


def test_what_was_thought_is_kept_as_it_came_and_the_cache_is_booked(
    claude: DaemonProcess, model: Model
) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 1000, "output_tokens": 5}
    usage["cache_creation_input_tokens"] = 200
    model.script([calling("count", "a", usage=usage), "Counted."])
    claude.ask("anna", "count it")
    [(kept,)] = claude.query("SELECT thinking FROM messages WHERE thinking IS NOT NULL")
    assert orjson.loads(kept)[0]["thinking"] == THOUGHT
    booked = claude.query(
        "SELECT input_tokens, cached_tokens, cache_write_tokens, output_tokens FROM usage "
        "ORDER BY id LIMIT 1"
    )
    assert booked == [(1210, 1000, 200, 5)]


def test_a_conversation_is_summarised_and_goes_on(claude: DaemonProcess, model: Model) -> None:
    """The request for a summary is one like any other."""
    model.script([calling("count", "a"), "Counted."])
    claude.ask("anna", "count it")
    for text in ("one", "two", "three"):
        claude.ask("anna", text)
    model.script([{"match": "", "text": "They counted."}])
    claude.post("anna", "/compact")
    until("the summary is asked for", lambda: len(model.requests) == 6)

    def shorter() -> bool:
        claude.ask("anna", "still there?")
        return SUMMARY_NOTE in str(model.requests[-1]["messages"][0])

    until("it was summarised", shorter)
    assert "They counted." in str(model.requests[-1]["messages"][0])
