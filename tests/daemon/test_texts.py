"""What is said stays what was said, whatever it is made of, over a kill and a restart."""

from __future__ import annotations

import json

import pytest

from tests.daemon.conftest import Model, said
from tests.daemon_process import DaemonProcess

MIB = 1 << 20
TEXTS = {
    "separators": "a\u2028b\u0085c\u000cd\u001ee\u2029f\rg\x00h",
    "half a character": "tea \ud83c and \udf75 and \ud83c\udf75",
    "much": "é" * (MIB // 4) + "x" * (MIB // 2 - 100) + "\\u2028\"'",
    "marks": "</s><|im_end|>[INST]{{x}}${HOME}%s\ufeff",
}


def whole(text: str) -> str:
    """Halves of characters are joined, or replaced, once, as a text comes in."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_comes_back_as_it_was(daemon: DaemonProcess, model: Model, name: str) -> None:
    text = whole(TEXTS[name])
    model.script([{"text": text}, "later"])
    escaped = name == "half a character"
    body = json.dumps({"chat_id": "anna", "content": TEXTS[name]}, ensure_ascii=escaped).encode()
    accepted = daemon.call("POST", "/v1/messages", body)
    assert accepted.status == 202, accepted
    reply = daemon.answer("api:anna", accepted.json["id"])["content"]
    assert reply in (text, text.strip())
    daemon.kill()
    daemon.start()
    assert daemon.all_replies("api:anna")[0]["content"] == reply
    assert [one["content"] for one in daemon.session("api:anna")["messages"]] == [text, reply]
    daemon.ask("anna", "and now?")
    assert said(model.requests[-1], "user")[0].endswith(text)
    assert said(model.requests[-1], "assistant") == [reply]
