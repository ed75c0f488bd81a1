"""`teaagentd ask`: one answer on standard output, whoever the daemon is."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from teaagentd.store.lock import is_held
from tests.cli.commands import PROGRAM, Done, command, environ, provider, running
from tests.daemon_process import DaemonProcess, until
from tests.strict_server import ServerProcess


def ask(home: Path, server: ServerProcess, *args: str, stdin: str = "") -> Done:
    return command("ask", *args, home=home, stdin=stdin, **provider(server.url))


def test_the_answer_is_all_there_is_on_standard_output(home: Path, server: ServerProcess) -> None:
    done = ask(home, server, "hello")
    assert (done.code, done.out) == (0, "Hello to you.\n")
    assert "config.toml" in done.err
    assert (home / "config.toml").exists()
    assert not is_held(home)


def test_the_second_time_nothing_is_said_of_files(home: Path, server: ServerProcess) -> None:
    ask(home, server, "hello")
    assert "config.toml" not in ask(home, server, "hello").err


def test_what_cannot_be_begun_is_given_up_and_kept(home: Path, server: ServerProcess) -> None:
    """As on a full disk: nobody is there to make room. It is answered once it can be."""
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        daemon.ask("bert", "hello")
        _rename(home, "messages", "away")
        done = command("ask", "two", "--session", "anna", home=home)
        assert (done.code, done.out) == (74, "")
        assert "The question was kept" in done.err.splitlines()[-1]
        _rename(home, "away", "messages")
        until("it is answered", lambda: daemon.replies("api:anna"))
        assert daemon.replies("api:anna")[0]["content"] == "Answer 2."


def _rename(home: Path, table: str, name: str) -> None:
    with closing(sqlite3.connect(home / "state.db", timeout=10)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_what_is_no_text_is_made_one(home: Path, server: ServerProcess) -> None:
    """Bytes that are no UTF-8, as an argument, on standard input, in a session's name."""
    for args in (["hello \udcff"], ["--session", "q\udcff", "hello"]):
        done = ask(home, server, *args)
        assert (done.code, done.out) == (0, "Hello to you.\n"), done.err
    script = 'printf "hello \\xff" | "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *PROGRAM, "ask", "-"],
        env=environ(home, **provider(server.url)),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"Hello to you.\n")


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_an_output_that_cannot_be_written_is_one_line(
    home: Path, server: ServerProcess, where: str
) -> None:
    ask(home, server, "hello")
    done = subprocess.run(
        ["bash", "-c", f'"$@" {where}', "bash", *PROGRAM, "ask", "hello"],
        env=environ(home, **provider(server.url)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "standard output" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_first_start_makes_the_way_to_a_long_home(server: ServerProcess) -> None:
    """A socket's path may have 108 bytes; a longer one leads by its folder."""
    with tempfile.TemporaryDirectory(prefix="tea-") as folder:
        long = Path(folder) / ("x" * 120)
        long.mkdir(mode=0o700)
        assert ask(long, server, "hello").out == "Hello to you.\n"


def test_json_is_the_whole_result(home: Path, server: ServerProcess) -> None:
    done = ask(home, server, "--json", "hello")
    result = json.loads(done.out)
    assert result["content"] == "Hello to you."
    assert result["kind"] == "final"
    assert len(result["message_ids"]) == 1
    assert result["turn"]["outcome"] == "answered"
    assert result["turn"]["id"] == result["turn_id"]


def test_the_question_can_come_on_standard_input(home: Path, server: ServerProcess) -> None:
    assert ask(home, server, "-", stdin="one, from a pipe").out == "Answer 1.\n"


def test_each_question_is_a_conversation_of_its_own_unless_one_is_named(
    home: Path, server: ServerProcess
) -> None:
    for args in (["one"], ["two"], ["--session", "x", "three"], ["--session", "x", "four"]):
        assert ask(home, server, *args).code == 0
    seen = [
        [message["content"] for message in request["body"]["messages"] if message["role"] == "user"]
        for request in server.requests
    ]
    assert [len(messages) for messages in seen] == [1, 1, 1, 2]


def test_a_failed_turn_is_one_line_and_code_1(home: Path, server: ServerProcess) -> None:
    ask(home, server, "hello")
    done = ask(home, server, "[[status:401]]")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("teaagentd: ")
    assert "key-of-the-test" not in done.err


def test_a_failed_turn_as_json_is_on_standard_output_too(home: Path, server: ServerProcess) -> None:
    done = ask(home, server, "--json", "[[status:401]]")
    assert done.code == 1
    assert json.loads(done.out)["turn"]["outcome"] == "failed"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_nothing_to_ask_is_code_2(home: Path, server: ServerProcess, text: str) -> None:
    assert ask(home, server, text).code == 2
    assert not home.exists()


def test_a_running_daemon_answers(home: Path, server: ServerProcess) -> None:
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        done = command("ask", "hello", home=home)
        assert (done.code, done.out) == (0, "Hello to you.\n")
        assert daemon.alive


def test_a_daemon_that_dies_and_comes_back_answers_once(home: Path, server: ServerProcess) -> None:
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        with running("ask", "a slow one", home=home) as asking:
            until("the model was asked", lambda: server.requests)
            daemon.kill()
            daemon.start()
            out, _ = asking.communicate(timeout=30)
        assert (asking.returncode, out) == (0, b"Slow answer.\n")
        assert daemon.query("SELECT count(*) FROM inbox") == [(1,)]


def test_a_daemon_that_stays_away_is_stood_in_for(home: Path, server: ServerProcess) -> None:
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        with running("ask", "a slow one", home=home, **provider(server.url)) as asking:
            until("the model was asked", lambda: server.requests)
            daemon.kill()
            out, _ = asking.communicate(timeout=30)
        assert (asking.returncode, out) == (0, b"Slow answer.\n")


def test_several_at_once_without_a_daemon_are_all_answered(
    home: Path, server: ServerProcess
) -> None:
    words = ["one", "two", "three"]
    with ThreadPoolExecutor(len(words)) as pool:
        results = list(pool.map(lambda word: ask(home, server, word), words))
    assert [(done.code, done.out) for done in results] == [
        (0, "Answer 1.\n"),
        (0, "Answer 2.\n"),
        (0, "Answer 3.\n"),
    ]


def test_an_interrupt_stops_the_turn_and_is_code_130(home: Path, server: ServerProcess) -> None:
    ask(home, server, "hello")
    with running("ask", "[[hang]]", home=home, **provider(server.url)) as asking:
        until("the model was asked", lambda: len(server.requests) == 2)
        asking.send_signal(signal.SIGINT)
        out, _ = asking.communicate(timeout=15)
    assert (asking.returncode, out) == (130, b"")
    assert not is_held(home)


def test_logs_go_to_a_file_and_hold_neither_text_nor_key(home: Path, server: ServerProcess) -> None:
    ask(home, server, "a-canary-in-the-question")
    log = (home / "logs" / "teaagentd.log").read_text()
    assert "ready" in log
    assert "canary" not in log
    assert "key-of-the-test" not in log
