"""What the terminal keeps between two chats."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from teaagentd.cli.remembered import Remembered
from teaagentd.home import Home
from teaagentd.types import SessionKey

KEY = SessionKey(channel="terminal", chat_id="main")


@pytest.fixture
def made(tmp_path: Path) -> Home:
    home = Home(root=tmp_path / "home")
    home.create()
    return home


def test_the_last_reply_shown_is_known_to_the_next_chat_of_the_session(made: Home) -> None:
    assert Remembered(made, KEY).seen() is None
    Remembered(made, KEY).remember(7)
    assert Remembered(made, KEY).seen() == 7
    other = SessionKey(channel="terminal", chat_id="../" + "x" * 500)
    assert Remembered(made, other).seen() is None
    Remembered(made, other).remember(8)
    assert (Remembered(made, KEY).seen(), Remembered(made, other).seen()) == (7, 8)


def test_what_cannot_be_read_is_not_known(made: Home) -> None:
    remembered = Remembered(made, KEY)
    remembered.remember(7)
    (file,) = made.terminal.iterdir()
    file.write_text("seven")
    assert remembered.seen() is None


def test_what_cannot_be_kept_does_no_harm(made: Home) -> None:
    made.terminal.rmdir()
    remembered = Remembered(made, KEY)
    remembered.remember(7)
    assert remembered.history_file() is None


def test_the_history_is_closed_to_others_and_bounded(made: Home) -> None:
    remembered = Remembered(made, KEY)
    file = remembered.history_file()
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("".join(f"\n# 2026-12-01\n+line {number}\n" for number in range(60_000)))
    assert remembered.history_file() == file
    assert 100_000 < file.stat().st_size < 600_000
    text = file.read_text()
    assert text.startswith("# 2026-12-01\n+line ")
    assert text.endswith("+line 59999\n")
