"""What a chat shows while answers stream, and after."""

from __future__ import annotations

import time

import pytest

from teaagentd.cli.chat_screen import Screen
from teaagentd.cli.client import Reply
from teaagentd.types import OutboundKind


class Sheet:
    """The paper, and what the prompt would draw below it."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.screen = Screen(self, changed=lambda: None, shown=self.ids.append)

    def write(self, data: str) -> None:
        self.text += data.replace("\x1b[2m", "<").replace("\x1b[0m", ">")


def reply(content: str, *, kind: OutboundKind = "final", turn: str = "t", number: int = 1) -> Reply:
    return Reply(id=number, turn_id=turn, kind=kind, message_ids=(1,), content=content, raw={})


def test_whole_lines_go_to_paper_and_the_unfinished_one_is_drawn() -> None:
    sheet = Sheet()
    for piece in ("one\ntw", "o\nth", "ree"):
        sheet.screen.delta("t", piece)
    assert sheet.text == "one\ntwo\n"
    assert sheet.screen.tail() == "three"


def test_the_reply_ends_what_was_streamed_and_repeats_none_of_it() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "one\ntwo")
    sheet.screen.reply(reply("one\ntwo, and more"))
    assert sheet.text == "one\ntwo, and more\n\n"
    assert sheet.screen.tail() == ""
    assert sheet.ids == [1]


def test_a_reply_that_did_not_stream_is_shown_whole() -> None:
    sheet = Sheet()
    sheet.screen.reply(reply("hello\n"))
    assert sheet.text == "hello\n\n"


def test_a_reset_voids_visibly_what_is_on_paper() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "wrong\nwro")
    sheet.screen.reset("t")
    assert sheet.screen.tail() == ""
    sheet.screen.delta("t", "right")
    sheet.screen.reply(reply("right"))
    assert sheet.text == "wrong\n<(the above is void: the answer starts over)>\nright\n\n"


def test_a_reset_of_what_is_not_on_paper_only_takes_it_away() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "wro")
    sheet.screen.reset("t")
    assert (sheet.text, sheet.screen.tail()) == ("", "")


def test_another_text_than_the_streamed_one_is_shown_in_its_place() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "The capital\nof Fr")
    sheet.screen.reply(reply("Stopped."))
    assert sheet.text == "The capital\n<(the above is void; in its place:)>\nStopped.\n\n"


def test_an_interim_answer_and_a_notice_are_shown_and_the_next_stream_is_apart() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "Looking")
    sheet.screen.reply(reply("Looking", kind="notice", number=1))
    sheet.screen.delta("t", "It is noon")
    sheet.screen.reply(reply("It is noon", kind="interim", number=2))
    sheet.screen.delta("t", "And tea")
    sheet.screen.reply(reply("And tea", number=3))
    assert sheet.text == "<Looking>\n\nIt is noon\n\nAnd tea\n\n"
    assert sheet.ids == [1, 2, 3]


def test_an_answer_that_only_repeats_the_notices_is_not_shown_again() -> None:
    sheet = Sheet()
    sheet.screen.reply(reply("Half done", kind="notice", number=1))
    sheet.screen.reply(reply("Done", kind="notice", number=2))
    sheet.screen.reply(reply("Half done\n\nDone", number=3))
    sheet.screen.phase("t", "done", "")
    sheet.screen.reply(reply("Done", number=4))
    assert sheet.text.count("Done") == 2
    assert sheet.ids == [1, 2, 3, 4]


@pytest.mark.parametrize("columns", [100, 60, 40, 20])
def test_what_one_can_do_is_said_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    sheet = Sheet()
    now = time.monotonic()
    assert sheet.screen.line(now).endswith("/help")
    sheet.screen.phase("t", "thinking", "SmolLM2-135M-Instruct.Q4_1 is loading its weights")
    assert sheet.screen.line(now).endswith("Ctrl-C stops")
    assert len(sheet.screen.line(now)) <= columns
    sheet.screen.connection(False)
    assert "Ctrl-D leaves" in sheet.screen.line(now)


def test_two_turns_do_not_mix() -> None:
    sheet = Sheet()
    sheet.screen.delta("a", "one")
    sheet.screen.delta("b", "two")
    sheet.screen.reply(reply("one", turn="a"))
    assert sheet.text == "one\n\n"
    assert sheet.screen.tail() == "two"


def test_a_text_cannot_steer_the_terminal() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "a\x1b[2Jb\x07\n\x9b31m")
    sheet.screen.reply(reply("a\x1b[2Jb\x07\n\x9b31m"))
    sheet.screen.phase("t", "tool", "x\x1b]0;title\x07")
    sheet.screen.note("y\x1bc")
    for char in ("\x1b", "\x07", "\x9b"):
        assert char not in sheet.text + sheet.screen.line(0)


def test_the_line_below_says_what_goes_on_and_for_how_long() -> None:
    sheet = Sheet()
    assert "/help" in sheet.screen.line(time.monotonic())
    sheet.screen.phase("t", "thinking", "")
    assert sheet.screen.busy
    assert sheet.screen.line(time.monotonic() + 5).startswith("thinking · 5 s")
    sheet.screen.phase("t", "tool", "current_time")
    assert sheet.screen.line(time.monotonic() + 9).startswith("tool: current_time · 9 s")
    sheet.screen.phase("t", "done", "")
    assert not sheet.screen.busy


def test_a_daemon_that_went_away_is_shown_and_what_it_streamed_is_void() -> None:
    sheet = Sheet()
    sheet.screen.phase("t", "thinking", "")
    sheet.screen.delta("t", "half\nan ans")
    sheet.screen.connection(False)
    assert "the daemon is gone" in sheet.screen.line(0)
    assert sheet.screen.tail() == ""
    sheet.screen.connection(True)
    assert "/help" in sheet.screen.line(0)


def test_a_long_unfinished_paragraph_shows_its_end() -> None:
    sheet = Sheet()
    sheet.screen.delta("t", "word " * 2000 + "end")
    assert sheet.screen.tail().startswith("…")
    assert sheet.screen.tail().endswith("end")
    assert len(sheet.screen.tail()) < 3000
    sheet.screen.reply(reply("word " * 2000 + "end"))
    assert sheet.text == "word " * 2000 + "end\n\n"
