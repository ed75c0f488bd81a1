"""Chat over a pipe: answers on standard output, in the order of the lines."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import PROGRAM, Done, command, environ, provider, running
from tests.daemon_process import until
from tests.strict_server import ServerProcess


def chat(home: Path, server: ServerProcess, stdin: str) -> Done:
    return command("chat", home=home, stdin=stdin, **provider(server.url))


@pytest.mark.parametrize("stdin", ["one\ntwo\n", "one\n\n  \ntwo", "one\r\ntwo\r\n"])
def test_each_line_is_answered_before_the_next_is_sent(
    home: Path, server: ServerProcess, stdin: str
) -> None:
    done = chat(home, server, stdin)
    assert (done.code, done.out) == (0, "Answer 1.\nAnswer 2.\n")
    assert len(server.requests) == 2


def test_nothing_said_is_nothing_answered(home: Path, server: ServerProcess) -> None:
    done = chat(home, server, "")
    assert (done.code, done.out) == (0, "")


def test_progress_and_notices_are_on_standard_error(home: Path, server: ServerProcess) -> None:
    done = chat(home, server, "[[tool:current_time]][[beside:Looking at the clock.]]time?\n")
    assert "; results: " in done.out
    assert "Looking at the clock." in done.err
    assert "· tool: current_time" in done.err
    assert "· thinking" in done.err


def test_commands_are_answered(home: Path, server: ServerProcess) -> None:
    done = chat(home, server, "/help\nhello\n/new\n")
    assert done.code == 0
    assert "/stop" in done.out.splitlines()[0]
    assert done.out.splitlines()[-2:] == ["Hello to you.", "A new conversation begins."]


def test_what_is_refused_is_said_and_the_rest_is_answered(
    home: Path, server: ServerProcess
) -> None:
    done = chat(home, server, "x" * 1_100_000 + "\nhello\n")
    assert (done.code, done.out) == (1, "Hello to you.\n")
    assert "teaagentd: " in done.err


def test_standard_input_may_be_a_file(home: Path, server: ServerProcess) -> None:
    home.parent.joinpath("lines").write_text("hello")
    with home.parent.joinpath("lines").open() as file:
        done = subprocess.run(
            [*PROGRAM, "chat"],
            env=environ(home, **provider(server.url)),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=True,
        )
    assert done.stdout == b"Hello to you.\n"


def test_a_turn_that_failed_is_no_answer(home: Path, server: ServerProcess) -> None:
    """As with `ask`: it is said on standard error and in the exit code; the rest is answered."""
    done = chat(home, server, "[[status:401]]\nhello\n")
    assert (done.code, done.out) == (1, "Hello to you.\n")
    assert "teaagentd: " in done.err


def test_a_reader_that_has_enough_ends_it_quietly(home: Path, server: ServerProcess) -> None:
    """As in `teaagentd chat | head -1`, which leaves before the second answer."""
    script = 'printf "one\\ntwo\\nthree\\n" | "$@" | head -1; echo "${PIPESTATUS[@]}"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *PROGRAM, "chat"],
        env=environ(home, **provider(server.url)),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "Answer 1.\n0 1 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_standard_input_may_be_closed(home: Path, server: ServerProcess) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" <&-', "bash", *PROGRAM, "chat"],
        env=environ(home, **provider(server.url)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_conversation_goes_on_in_the_next_chat(home: Path, server: ServerProcess) -> None:
    chat(home, server, "one\n")
    chat(home, server, "two\n")
    messages = server.requests[-1]["body"]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


def test_an_answer_left_by_a_crash_is_not_taken_for_that_of_a_line(
    home: Path, server: ServerProcess
) -> None:
    with running("chat", home=home, **provider(server.url)) as talking:
        write(talking, "a slow one\n")
        until("the model was asked", lambda: server.requests)
        talking.kill()
    assert chat(home, server, "two\n").out == "Answer 2.\n"


def test_the_first_interrupt_stops_the_turn_and_reads_no_further(
    home: Path, server: ServerProcess
) -> None:
    with running("chat", home=home, **provider(server.url)) as talking:
        write(talking, "[[hang]]\ntwo\n")
        until("the model was asked", lambda: server.requests)
        talking.send_signal(signal.SIGINT)
        out, _ = talking.communicate(timeout=15)
    assert (talking.returncode, out) == (130, b"Stopped.\n")
    assert len(server.requests) == 1


def test_an_interrupt_where_nothing_runs_leaves(home: Path, server: ServerProcess) -> None:
    with running("chat", home=home, **provider(server.url)) as talking:
        write(talking, "hello\n")
        assert talking.stdout is not None
        assert talking.stdout.readline() == b"Hello to you.\n"
        talking.send_signal(signal.SIGINT)
        assert talking.wait(15) == 130


def write(talking: subprocess.Popen[bytes], text: str) -> None:
    assert talking.stdin is not None
    talking.stdin.write(text.encode())
    talking.stdin.flush()
