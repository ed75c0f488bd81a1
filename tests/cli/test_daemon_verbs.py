"""`run`, `send`, `status` and `stop`: a daemon and those who talk to it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from teaagentd.store.lock import is_held
from tests.cli.commands import command, provider, running
from tests.daemon_process import DaemonProcess, until
from tests.strict_server import ServerProcess


@pytest.fixture
def daemon(home: Path, server: ServerProcess) -> Iterator[DaemonProcess]:
    with DaemonProcess(home, provider=server.url) as made:
        made.start()
        yield made


class TestRun:
    def test_the_first_one_writes_the_home(self, daemon: DaemonProcess) -> None:
        assert (daemon.home / "config.toml").exists()
        assert (daemon.home / "workspace" / "AGENTS.md").exists()
        assert "settings, all explained" in daemon.log()

    def test_a_second_on_the_home_names_the_first_and_is_code_75(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        done = command("run", home=daemon.home, **provider(server.url))
        assert (done.code, done.out) == (75, "")
        assert f"process {daemon.pid}" in done.err.splitlines()[-1]
        assert daemon.ask("anna", "hello") == "Hello to you."

    def test_one_signal_is_a_clean_end(self, daemon: DaemonProcess) -> None:
        assert daemon.terminate() == 0
        assert not is_held(daemon.home)

    def test_two_signals_are_a_forced_one(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        daemon.post("anna", "[[hang]]")
        until("the model was asked", lambda: server.requests)
        daemon.signal(signal.SIGTERM)
        until("it says what it waits for", lambda: "api:anna" in daemon.log())
        daemon.signal(signal.SIGTERM)
        assert daemon.wait_exit() == 3

    def test_its_log_is_json_under_systemd_and_holds_no_secret(
        self, home: Path, server: ServerProcess
    ) -> None:
        environ = {"INVOCATION_ID": "x", "TEAAGENTD_LOGGING__LEVEL": "debug"}
        with DaemonProcess(home, provider=server.url, environ=environ) as daemon:
            daemon.start()
            daemon.ask("anna", "a-canary-in-a-message hello")
            daemon.ask("anna", "[[status:401]]")
            daemon.terminate()
            lines = [line for line in daemon.log().splitlines() if line.startswith("{")]
            events = [json.loads(line) for line in lines]
            assert {"ready", "stopped"} <= {event["event"] for event in events}
            assert "key-of-the-test" not in daemon.log()
            assert all("canary" not in line or '"debug"' in line for line in lines)

    def test_a_warning_of_the_configuration_is_logged(
        self, home: Path, server: ServerProcess
    ) -> None:
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text("[agent]\nmax_iteration = 5\n")
        (home / "config.toml").chmod(0o600)
        with DaemonProcess(home, provider=server.url) as daemon:
            daemon.start()
            assert "did you mean agent.max_iterations?" in daemon.log()

    def test_a_provider_that_is_not_installed_is_code_78(self, home: Path) -> None:
        done = command("run", home=home, TEAAGENTD_PROVIDER__TYPE="gpt")
        assert done.code == 78
        assert "there is no provider 'gpt'" in done.err.splitlines()[-1]

    def test_a_damaged_database_is_code_65_and_kept(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        (home / "state.db").write_bytes(b"not a database" * 1000)
        done = command("run", home=home)
        assert done.code == 65
        kept = [path for path in home.iterdir() if path.name.startswith("state.db")]
        assert any(path.read_bytes() == b"not a database" * 1000 for path in kept)


class TestSend:
    def test_prints_the_id_under_which_it_was_accepted(self, daemon: DaemonProcess) -> None:
        done = command("send", "hello", "--session", "anna", home=daemon.home)
        assert done.code == 0
        assert daemon.answer("api:anna", int(done.out))["content"] == "Hello to you."

    def test_waits_for_the_answer_where_asked_to(self, daemon: DaemonProcess) -> None:
        for word, answer in (("one", "Answer 1."), ("two", "Answer 2.")):
            done = command("send", word, "--session", "anna", "--wait", "20", home=daemon.home)
            assert (done.code, done.out) == (0, f"{answer}\n")

    def test_the_text_can_come_on_standard_input(self, daemon: DaemonProcess) -> None:
        line = ["send", "-", "--session", "anna", "--wait", "20"]
        assert command(*line, home=daemon.home, stdin="two").out == "Answer 2.\n"

    def test_the_same_id_again_is_not_taken_twice(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        line = ["send", "hello", "--session", "anna", "--id", "x", "--wait", "20"]
        assert command(*line, home=daemon.home).out == "Hello to you.\n"
        assert command(*line, home=daemon.home).out == "Hello to you.\n"
        assert len(server.requests) == 1

    def test_the_same_id_with_another_text_is_code_1(self, daemon: DaemonProcess) -> None:
        command("send", "hello", "--session", "anna", "--id", "x", home=daemon.home)
        done = command("send", "goodbye", "--session", "anna", "--id", "x", home=daemon.home)
        assert (done.code, done.out) == (1, "")
        assert "already accepted" in done.err

    def test_what_cannot_be_accepted_is_code_1(self, daemon: DaemonProcess) -> None:
        done = command("send", "hello", "--session", "nowhere:anna", home=daemon.home)
        assert (done.code, done.out) == (1, "")
        assert len(done.err.splitlines()) == 1

    def test_a_turn_that_failed_is_code_1(self, home: Path) -> None:
        with ServerProcess() as server, DaemonProcess(home, provider=server.url) as daemon:
            daemon.start()
            line = ["send", "[[status:401]]", "--session", "anna", "--wait", "20"]
            done = command(*line, home=home)
        assert (done.code, done.out) == (1, "")
        assert "Check its api_key" in done.err

    @pytest.mark.parametrize(
        ("text", "session", "wrong"),
        [("  ", "anna", "text is empty"), ("hello", "", "--session"), ("hello", "a:", "--session")],
    )
    def test_what_says_nothing_is_code_2(
        self, daemon: DaemonProcess, text: str, session: str, wrong: str
    ) -> None:
        done = command("send", text, "--session", session, home=daemon.home)
        assert (done.code, done.out) == (2, "")
        assert wrong in done.err

    def test_too_short_a_wait_is_code_75_and_the_message_is_kept(
        self, daemon: DaemonProcess
    ) -> None:
        line = ["send", "slow", "--session", "anna", "--wait", "0.1"]
        done = command(*line, home=daemon.home)
        assert done.code == 75
        assert "will be answered" in done.err
        assert until("it is answered", lambda: daemon.replies("api:anna"))

    def test_a_full_inbox_is_code_75(self, home: Path, server: ServerProcess) -> None:
        environ = {"TEAAGENTD_BUS__MAX_PENDING": "1", "TEAAGENTD_AGENT__MAX_CONCURRENT_TURNS": "1"}
        with DaemonProcess(home, provider=server.url, environ=environ) as daemon:
            daemon.start()
            daemon.post("anna", "[[hang]]")
            until("the model was asked", lambda: server.requests)
            daemon.post("bert", "hello")
            done = command("send", "hello", "--session", "carl", home=home)
            assert done.code == 75
            assert "the inbox is full" in done.err


class TestStatus:
    def test_says_what_an_idle_daemon_is(self, daemon: DaemonProcess) -> None:
        done = command("status", home=daemon.home)
        assert done.code == 0
        assert f"process {daemon.pid}, running" in done.out
        assert "openai, strict" in done.out
        assert "0 to be answered" in done.out

    def test_shows_the_turns_with_their_phase(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        daemon.post("anna", "[[hang]]")
        until("the model was asked", lambda: server.requests)
        done = command("status", home=daemon.home)
        (line,) = [line for line in done.out.splitlines() if "api:anna" in line]
        assert "thinking" in line

    def test_json_is_the_whole_of_it(self, daemon: DaemonProcess) -> None:
        found = json.loads(command("status", "--json", home=daemon.home).out)
        assert found["pid"] == daemon.pid
        assert found["inbox"]["depth"] == 0


class TestStop:
    def test_ends_the_daemon_and_returns_when_it_is_gone(self, daemon: DaemonProcess) -> None:
        done = command("stop", home=daemon.home)
        assert (done.code, done.out) == (0, "Stopped.\n")
        assert not is_held(daemon.home)
        assert daemon.wait_exit() == 0

    def test_lets_it_finish_and_says_what(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        posted = daemon.post("anna", "slow")
        until("the model was asked", lambda: server.requests)
        done = command("stop", home=daemon.home)
        assert (done.code, done.out) == (0, "Stopped.\n")
        assert "Finishing: api:anna" in done.err
        assert daemon.wait_exit() == 0
        daemon.start()
        assert daemon.answer("api:anna", posted)["content"] == "Slow answer."
        assert len(server.requests) == 1

    def test_waits_no_longer_than_it_is_told_to(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        daemon.post("anna", "[[hang]]")
        until("the model was asked", lambda: server.requests)
        done = command("stop", "--wait", "0.3", home=daemon.home)
        assert done.code == 75
        assert "it goes on ending" in done.err

    def test_stops_one_conversation_where_asked_to(
        self, daemon: DaemonProcess, server: ServerProcess
    ) -> None:
        posted = daemon.post("anna", "[[hang]]")
        until("the model was asked", lambda: server.requests)
        done = command("stop", "--session", "anna", home=daemon.home)
        assert (done.code, done.out) == (0, "Stopped.\n")
        assert daemon.answer("api:anna", posted)["content"] == "Stopped."
        again = command("stop", "--session", "anna", home=daemon.home)
        assert again.out == "Nothing was running there.\n"
        assert daemon.alive

    def test_ends_a_chat_that_is_the_daemon(self, home: Path, server: ServerProcess) -> None:
        with running("chat", home=home, **provider(server.url)) as talking:
            until("it serves", lambda: (home / "run" / "teaagentd.sock").exists())
            assert command("stop", home=home).code == 0
            assert talking.wait(15) == 69


def test_a_home_with_a_long_path_works(home: Path, server: ServerProcess) -> None:
    deep = home.parent / ("a-folder-with-a-long-name-" * 6) / "home"
    deep.parent.mkdir()
    with DaemonProcess(deep, provider=server.url) as daemon:
        daemon.launch()
        until("it is ready", lambda: "ready" in daemon.log())
        line = ["send", "hello", "--session", "anna", "--wait", "20"]
        assert command(*line, home=deep).out == "Hello to you.\n"
        assert command("stop", home=deep).code == 0
