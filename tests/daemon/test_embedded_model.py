"""A real conversation with the embedded model: no key, no network, no script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import Box, DaemonProcess, until

pytestmark = pytest.mark.timeout(400)

ASKS_THE_TIME = (
    "What time is it?",
    "What day is it today?",
    "Can you tell me the current time?",
    "What is today's date?",
    "What time is it right now?",
    "Which day of the week is it?",
    "Please look up the time for me.",
    "Do you know what time it is?",
)
ASKS_ANYTHING_ELSE = (
    "Hello!",
    "What is the capital of France?",
    "Write one sentence about tea.",
    "How many legs does a spider have?",
    "Thank you very much.",
    "Name three colours.",
    "What is 2 plus 3?",
    "Say something nice.",
    "Who wrote Romeo and Juliet?",
    "Why is the sky blue?",
    "Tell me a joke.",
    "Translate 'good morning' into French.",
)


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    """One that nobody configured: it picks the embedded model."""
    with Box() as box, DaemonProcess(box.home) as found:
        found.start()
        yield found


def test_ask_steer_restart_ask_again(daemon: DaemonProcess) -> None:
    assert daemon.status()["provider"]["name"] == "local"
    assert daemon.ask("anna", "Hello! Who are you?").strip()
    with daemon.events("api:anna") as events:
        story = daemon.post("anna", "Tell me a long story about a cup of tea, please.")
        while next(events)[0] != "delta":
            pass
        steering = daemon.post("anna", "And put a cat into it.")
    told, final = daemon.answer("api:anna", story), daemon.answer("api:anna", steering)
    assert told["turn_id"] == final["turn_id"], "the second message was not folded into the turn"
    assert final["kind"] == "final"
    assert final["content"].strip()
    before = daemon.session("api:anna")["messages"]
    assert daemon.terminate() == 0
    daemon.start()
    assert daemon.ask("anna", "Thank you. What animal was in the story?").strip()
    after = daemon.session("api:anna")["messages"]
    assert after[: len(before)] == before
    assert len(after) >= len(before) + 2
    children = _children(daemon.pid)
    assert children
    daemon.kill()
    until("the model's process is gone", lambda: not any(map(_runs, children)))


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def _runs(pid: int) -> bool:
    """Whether it lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ten_turns_come_from_the_cache(
    daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all prompt tokens of ten turns in one conversation at least 85 % are cached."""
    read = cached = 0
    for number in range(10):
        posted = daemon.post("anna", f"{ASKS_ANYTHING_ELSE[number]}")
        turn_id = daemon.answer("api:anna", posted)["turn_id"]
        usage = daemon.call("GET", f"/v1/turns/{turn_id}").json["usage"]
        read += usage["input_tokens"]
        cached += usage["cached_tokens"]
    with capsys.disabled():
        print(f"\n{cached} of {read} prompt tokens cached ({100 * cached / read:.0f} %) ", end="")
    assert cached >= 0.85 * read


def test_every_json_decision_is_valid(
    daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty fixed prompts, each in a conversation of its own: no reply has to be asked for
    again, and each is one of the two forms."""
    called: list[str] = []
    right = 0
    for number, prompt in enumerate((*ASKS_THE_TIME, *ASKS_ANYTHING_ELSE)):
        posted = daemon.post(f"chat{number}", prompt)
        turn_id = daemon.answer(f"api:chat{number}", posted)["turn_id"]
        decisions = [
            json.loads(raw)
            for (raw,) in daemon.query(
                "SELECT m.raw FROM messages m JOIN turns t ON t.number = m.turn "
                "WHERE t.id = ? AND m.role = 'assistant' ORDER BY m.place",
                turn_id,
            )
        ]
        turn = daemon.call("GET", f"/v1/turns/{turn_id}").json
        assert turn["outcome"] == "answered", (prompt, turn)
        assert turn["requests"] == len(decisions), f"{prompt}: a reply was asked for again"
        assert all(one["action"] in ("answer", "current_time") for one in decisions), decisions
        assert decisions[-1]["text"].strip()
        if any(one["action"] == "current_time" for one in decisions):
            called.append(prompt)
            right += _agrees(decisions[-1]["text"], daemon, turn_id)
    useful = [prompt for prompt in called if prompt in ASKS_THE_TIME]
    with capsys.disabled():
        print(
            f"\n20 of 20 decisions valid; tool called for {len(useful)} of {len(ASKS_THE_TIME)} "
            f"that need it, and for {len(called) - len(useful)} of {len(ASKS_ANYTHING_ELSE)} "
            f"that do not; {right} of {len(called)} answers say what the tool said ",
            end="",
        )


def _agrees(answer: str, daemon: DaemonProcess, turn_id: str) -> bool:
    """Whether `answer` has the time, or the day and the date, of the tool's result."""
    *_, (told,) = daemon.query(
        "SELECT m.content FROM messages m JOIN turns t ON t.number = m.turn "
        "WHERE t.id = ? AND m.role = 'tool' ORDER BY m.place",
        turn_id,
    )
    time, _, date = told.removeprefix("It is ").partition(" on ")
    return time in answer or date.partition(" (")[0] in answer
