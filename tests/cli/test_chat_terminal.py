"""Chat at a keyboard, in a terminal of its own."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from tests.cli.commands import Keyboard, command, provider
from tests.daemon_process import DaemonProcess, until
from tests.strict_server import ServerProcess

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def chat(home: Path, server: ServerProcess, *args: str) -> Keyboard:
    return Keyboard(["chat", *args], home=home, variables=provider(server.url))


def ready(talking: Keyboard) -> Keyboard:
    talking.wait_for("Ctrl-D leaves")
    return talking


def test_a_first_chat_says_what_it_writes_then_talks(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        talking.wait_for("config.toml")
        ready(talking)
        talking.enter("hello")
        talking.wait_for("Hello to you.")
        talking.type(CTRL_D)
        assert talking.wait_exit() == 0


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_a_word_leaves(home: Path, server: ServerProcess, word: str) -> None:
    with chat(home, server) as talking:
        ready(talking).enter(word)
        assert talking.wait_exit() == 0
    assert server.requests == []


def test_the_answer_streams_and_the_phase_is_shown(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking)
        server.script([{"text": "alpha beta gamma delta", "chunks": 4, "chunk_ms": 700}])
        talking.enter("hi")
        talking.wait_for("thinking · ")
        talking.wait_for("alpha")
        assert "delta" not in talking.shown
        talking.wait_for("alpha beta gamma delta")
        talking.wait_for("Ctrl-D leaves")


def test_several_lines_are_shown_once(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking)
        server.script([{"text": "first line\nsecond line\nthird", "chunks": 9, "chunk_ms": 30}])
        talking.enter("hello")
        talking.wait_for("third")
        ready(talking)
        # The last line is drawn anew when it is whole.
        talking.wait_until("one last line", lambda: talking.shown.count("third\n") == 1)
        assert talking.shown.count("first line\n") == 1
        assert talking.shown.count("second line\n") == 1


def test_what_is_typed_while_it_works_is_steering(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("a slow thing")
        until("the model was asked", lambda: server.requests)
        talking.enter("two")
        talking.wait_for("Slow answer.")
        talking.wait_for("Answer 2.")
    assert len(server.requests) == 2


def test_the_answer_after_an_overtaken_one_is_shown_once(home: Path, server: ServerProcess) -> None:
    server.script(
        [
            {"match": "go slow", "text": "first\nsecond\nthird", "chunks": 10, "chunk_ms": 100},
            {"match": "and more", "text": "alpha\nbeta\ngamma", "chunks": 9, "chunk_ms": 20},
        ]
    )
    with chat(home, server) as talking:
        ready(talking).enter("go slow")
        talking.wait_for("first")
        talking.enter("and more")
        talking.wait_for("gamma")
        ready(talking)
        shown = talking.shown
        assert [shown.count(f"{word}\n") for word in ("alpha", "beta", "gamma")] == [1, 1, 1]
        assert "that was all of it" not in shown


def test_the_first_ctrl_c_stops_the_turn_and_the_second_leaves(
    home: Path, server: ServerProcess
) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("[[hang]]")
        until("the model was asked", lambda: server.requests)
        talking.wait_for("thinking")
        talking.type(CTRL_C)
        talking.wait_for("Stopped.")
        talking.type(CTRL_C)
        assert talking.wait_exit() == 130


def test_a_terminal_that_cannot_move_its_cursor_is_served_line_by_line(
    home: Path, server: ServerProcess
) -> None:
    with Keyboard(
        ["chat"], home=home, variables={**provider(server.url), "TERM": "dumb"}
    ) as talking:
        talking.enter("hello")
        talking.wait_for("Hello to you.")
        talking.enter("[[hang]]")
        talking.wait_for("thinking")
        until("the model was asked", lambda: len(server.requests) == 2)
        talking.type(CTRL_C)
        talking.wait_for("Stopped.")
        assert talking.wait_exit() == 130


def test_after_a_stop_one_can_go_on(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("[[hang]]")
        until("the model was asked", lambda: server.requests)
        talking.wait_for("thinking")
        talking.type(CTRL_C)
        talking.wait_for("Stopped.")
        talking.enter("hello")
        talking.wait_for("Hello to you.")
        talking.type(CTRL_C)
        talking.wait_for("Ctrl-C again leaves")
        talking.type(CTRL_C)
        assert talking.wait_exit() == 130


def test_an_attempt_that_starts_over_is_void_visibly(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking)
        server.script([{"text": "wrong\nand more of it", "chunks": 8, "cut": 6}, "right"])
        talking.enter("hello")
        talking.wait_for("the answer starts over")
        talking.wait_for("right")


def test_a_notice_and_a_tool_are_shown(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("[[tool:current_time]][[beside:Looking at the clock.]]time?")
        talking.wait_for("Looking at the clock.")
        talking.wait_for("; results:")


def test_lines_are_remembered_for_their_owner_only(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("one line to remember")
        talking.wait_for("Answer 1.")
        talking.type(CTRL_D)
        talking.wait_exit()
    history = home / "terminal" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with chat(home, server) as talking:
        ready(talking).press(UP, until="> one line to remember")


def test_commands_are_completed(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).type("/he")
        talking.wait_for("the commands")
        talking.type("\t")
        talking.wait_for("> /help")
        talking.type("\r")
        talking.wait_for("/status  what I am doing")
    assert server.requests == []


def test_a_daemon_that_dies_is_waited_for_and_nothing_is_sent_twice(
    home: Path, server: ServerProcess
) -> None:
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        with chat(home, server) as talking:
            ready(talking).enter("one")
            talking.wait_for("Answer 1.")
            daemon.kill()
            talking.wait_for("the daemon is gone")
            talking.enter("two")
            talking.wait_for("> two")
            daemon.start()
            talking.wait_for("Answer 2.")
        assert daemon.query("SELECT count(*) FROM inbox") == [(2,)]


def test_what_was_answered_meanwhile_is_shown_at_the_next_chat(
    home: Path, server: ServerProcess
) -> None:
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        with chat(home, server) as talking:
            ready(talking).enter("a slow thing")
            until("the model was asked", lambda: server.requests)
            talking.type(CTRL_D)
            assert talking.wait_exit() == 0
        until("it is answered", lambda: daemon.replies("terminal:main"))
        with chat(home, server) as talking:
            talking.wait_for("Since you were last here:")
            talking.wait_for("Slow answer.")
        with chat(home, server) as talking:
            ready(talking).enter("two")
            talking.wait_for("Answer 2.")
            assert "Slow answer." not in talking.shown


def test_an_answer_that_a_crash_cut_off_is_given_by_the_next_chat(
    home: Path, server: ServerProcess
) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("a slow thing")
        until("the model was asked", lambda: server.requests)
        talking.signal(signal.SIGKILL)
        talking.wait_exit()
    with chat(home, server) as talking:
        talking.wait_for("Slow answer.")


def test_a_request_to_end_leaves_as_it_should(home: Path, server: ServerProcess) -> None:
    with chat(home, server) as talking:
        ready(talking).signal(signal.SIGTERM)
        assert talking.wait_exit() == 0


def test_who_leaves_while_it_works_is_told_and_finds_the_answer_later(
    home: Path, server: ServerProcess
) -> None:
    with chat(home, server) as talking:
        ready(talking).enter("a slow thing")
        until("the model was asked", lambda: server.requests)
        talking.type(CTRL_D)
        talking.wait_for("Finishing terminal:main")
        assert talking.wait_exit() == 0
    with chat(home, server) as talking:
        talking.wait_for("Slow answer.")
    assert len(server.requests) == 1


def test_who_cannot_wait_leaves_with_an_interrupt_and_nothing_is_lost(
    home: Path, server: ServerProcess
) -> None:
    server.script([{"match": "hang", "hang": True}, {"match": "hang", "text": "Here I am."}])
    with chat(home, server) as talking:
        ready(talking).enter("hang")
        until("the model was asked", lambda: server.requests)
        talking.type(CTRL_D)
        talking.wait_for("Finishing terminal:main")
        talking.type(CTRL_C)
        talking.wait_exit()
    with chat(home, server) as talking:
        talking.wait_for("Here I am.")


def test_a_chat_whose_daemon_is_told_to_stop_ends_and_says_so(
    home: Path, server: ServerProcess
) -> None:
    with chat(home, server) as talking:
        ready(talking)
        assert command("stop", home=home).code == 0
        assert talking.wait_exit() == 69
        assert "was told to stop" in talking.shown
