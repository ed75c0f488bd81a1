"""A conversation that is talked to a thousand times while it is busy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.daemon.conftest import Effects, MakeDaemon, Model, said
from tests.daemon_process import until

MESSAGES = 1000
CHARACTERS = 8000


def most_resident(pid: int) -> int:
    """Bytes, at the highest since `forget_most`."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def forget_most(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.timeout(240)
def test_a_thousand_messages_to_one_busy_session_are_folded_in_order(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    daemon = make_daemon({"TEAAGENTD_TOOLS__ENABLED": '["marked"]'})
    daemon.start()
    model.script(
        [
            {"text": "warm"},
            {"calls": [{"id": "c1", "name": "hold", "arguments": {"name": "a"}}]},
            {"text": "I have read it all."},
        ]
    )
    daemon.ask("bert", "hello")
    first = daemon.post("anna", "Wait for more.")
    effects.wait("hold a")
    forget_most(daemon.pid)
    before = most_resident(daemon.pid)
    texts = [f"{number:04} ".ljust(CHARACTERS, "x") for number in range(MESSAGES)]
    ids = [daemon.post("anna", text) for text in texts]
    effects.release("a")
    until("it is answered", lambda: daemon.all_replies("api:anna"), timeout_s=120)
    grown = most_resident(daemon.pid) - before
    [reply] = daemon.all_replies("api:anna")
    assert reply["content"] == "I have read it all."
    assert sorted(reply["message_ids"]) == [first, *ids]
    told = said(model.requests[-1], "user")[1:]
    assert [text[-CHARACTERS:] for text in told] == texts
    assert grown <= 2 * MESSAGES * CHARACTERS
