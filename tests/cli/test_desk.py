"""`inbox`, `outbox`, `sessions`, `export` and `erase`, beside a daemon and without one."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import daemon_plugin
from tests.cli.commands import Done, Keyboard, command
from tests.daemon_process import DaemonProcess, plugin_folder, until
from tests.strict_server import ServerProcess

HOSTILE = "a/../b \u2028 " + "k" * 250
SECRET = "xyzzy-my-secret-word"
Run = Callable[..., Done]


@contextmanager
def daemon_of(home: Path, server: ServerProcess) -> Iterator[DaemonProcess]:
    """A daemon with the tests' tools and channel, and a small cap on attempts of none."""
    daemon = DaemonProcess(
        home,
        provider=server.url,
        path=[plugin_folder(home.parent / "plugin", daemon_plugin.POINTS)],
        environ={
            daemon_plugin.FOLDER_VARIABLE: str(home.parent),
            "TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}',
        },
    )
    with daemon:
        daemon.start()
        yield daemon


@pytest.fixture(params=["beside a daemon", "without one"])
def lived(
    request: pytest.FixtureRequest, home: Path, server: ServerProcess
) -> Iterator[tuple[DaemonProcess, Run]]:
    """A home in which something was said, a text was given up and a message waits behind a model
    that hangs; with and without the daemon it is looked at the same way."""
    server.script([{"match": "hang here", "hang": True, "times": 9}])
    with daemon_of(home, server) as daemon:
        daemon.ask("anna", f"hello, {SECRET}")
        daemon.ask("anna", "one\u2028two\u0085three")
        daemon.ask(HOSTILE, "who am I?")
        daemon.ask("dora", SECRET)
        daemon.post("bob", "[[say:REFUSE this]]", channel="filebox", sender_id="bob")
        until("it is refused", lambda: daemon.status()["dead_letters"] == 1)
        daemon.post("carl", "hang here")
        until("the model hangs", lambda: daemon.status()["turns"])
        daemon.post("carl", "I wait")
        if request.param == "without one":
            daemon.kill()
        yield daemon, lambda *args, **more: command(*args, home=home, **more)


def test_queues_are_listed_and_what_is_in_them_retried_and_dropped(
    lived: tuple[DaemonProcess, Run],
) -> None:
    daemon, run = lived
    [waiting] = json.loads(run("inbox", "list", "--json").out)
    assert (waiting["state"], waiting["content"], waiting["session_key"]) == (
        "pending",
        "I wait",
        "api:carl",
    )
    row = str(waiting["id"])
    assert run("inbox", "drop", row).code == 1
    assert "--yes" in run("inbox", "drop", row).err
    done = run("inbox", "drop", row, "--yes")
    assert (done.code, done.out) == (0, f"{row} is dropped\n"), done.err
    assert run("inbox", "list").out == "nothing waits, and nothing was set aside\n"
    done = run("inbox", "retry", row)
    assert done.code == 1
    assert "is not set aside" in done.err
    [letter] = json.loads(run("outbox", "list", "--json").out)
    assert (letter["state"], letter["sent"]) == ("dead", 0)
    assert "chat not found" in run("outbox", "list").out
    done = run("outbox", "retry", str(letter["id"]), "9999")
    assert (done.code, done.out) == (1, f"{letter['id']} is to be delivered again, by filebox\n")
    assert done.err == "teaagentd: 9999: there is no text 9999\n"
    if daemon.alive:
        until("it is refused again", lambda: daemon.status()["dead_letters"] == 1)
    done = run("outbox", "drop", str(letter["id"]), "--yes", "--json")
    assert (done.code, json.loads(done.out)) == (0, [{"id": letter["id"]}])
    assert run("outbox", "list").out == "nothing waits, and nothing was given up\n"
    if not daemon.alive:
        daemon.start()
    [text] = [one for one in daemon.replies("api:carl") if waiting["id"] in one["message_ids"]]
    assert "taken out by the owner" in text["content"]


def test_conversations_are_listed_read_found_and_exported(
    lived: tuple[DaemonProcess, Run], home: Path
) -> None:
    _, run = lived
    keys = [one["session_key"] for one in json.loads(run("sessions", "list", "--json").out)]
    assert keys == ["api:carl", "filebox:bob", "api:dora", f"api:{HOSTILE}", "api:anna"]
    assert len(run("sessions", "list", "--limit", "2").out.splitlines()) == 2
    shown = json.loads(run("sessions", "show", "anna", "--json", "--limit", "2").out)
    assert [one["role"] for one in shown] == ["user", "assistant"]
    assert shown[0]["content"] == "one\u2028two\u0085three"
    assert SECRET in run("sessions", "show", "anna").out
    done = run("sessions", "show", "nobody")
    assert (done.code, done.err) == (1, "teaagentd: there is no session api:nobody\n")
    assert "who am I?" in run("sessions", "show", f"api:{HOSTILE}").out
    found = run("sessions", "search", SECRET.upper())
    assert found.code == 0
    assert found.out.count("api:anna") + found.out.count("api:dora") == 4
    assert len(found.out.splitlines()) == 4
    found = run("sessions", "search", SECRET, "--json")
    assert {one["session_key"] for one in json.loads(found.out)} == {"api:anna", "api:dora"}
    assert run("sessions", "search", "never said").code == 1
    assert json.loads(run("sessions", "search", "never said", "--json").out) == []
    lines = run("sessions", "export", "anna", "--format", "json").out.split("\n")[:-1]
    assert [json.loads(line)["role"] for line in lines] == ["user", "assistant"] * 2
    file = home.parent / "anna.md"
    assert run("sessions", "export", "anna", "--output", str(file)).code == 0
    assert file.read_text().count("## You") == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    done = run("sessions", "export", "anna", "--output", str(file))
    assert "exists already" in done.err


def test_everything_is_exported(lived: tuple[DaemonProcess, Run], home: Path) -> None:
    _, run = lived
    folder = home.parent / "out"
    done = run("export", "--all", str(folder))
    assert (done.code, done.out) == (0, f"5 conversations are in {folder}.\n"), done.err
    assert run("export", "--all", str(folder)).code == 1
    index = [json.loads(line) for line in (folder / "index.jsonl").read_bytes().splitlines()]
    assert {one["session_key"] for one in index} == {
        "api:carl",
        "filebox:bob",
        f"api:{HOSTILE}",
        "api:anna",
        "api:dora",
    }
    for one in index:
        lines = (folder / f"{one['file']}.jsonl").read_bytes().split(b"\n")[:-1]
        assert len(lines) == one["exported"]
        assert all("note" not in json.loads(line) for line in lines)
    assert {path.parent for path in folder.rglob("*")} == {folder}
    assert [path for path in folder.parent.iterdir() if path.name.startswith(".out")] == []


def test_what_is_deleted_is_gone_from_the_file(
    lived: tuple[DaemonProcess, Run], home: Path
) -> None:
    daemon, run = lived
    done = run("sessions", "delete", "carl", "--yes")
    assert done.code == 1
    assert "teaagentd stop --session api:carl" in done.err
    done = run("sessions", "delete", "anna", "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.out == ("api:anna is deleted: 4 messages of transcripts, 2 accepted, 2 texts.\n")
    done = run("erase", "--sender", "bob", "--yes")
    assert done.code == 0
    assert "1 conversations (1 of them whole)" in done.out
    assert run("erase", "--sender", "bob", "--yes").code == 1
    assert run("erase").code == 2
    assert run("erase", "--sender", "bob", "--session", "anna").code == 2
    assert run("erase", "--session", "nobody", "--yes").code == 1
    assert run("erase", "--session", "dora", "--yes").code == 0
    copy = home / "state.db.before-1-to-2"
    copy.touch()
    done = run("erase", "--chat", f"api:{HOSTILE}", "--yes", "--json")
    assert (done.code, json.loads(done.out)["session_keys"]) == (0, [f"api:{HOSTILE}"])
    assert str(copy) in done.err
    assert [one["session_key"] for one in json.loads(run("sessions", "list", "--json").out)] == [
        "api:carl"
    ]
    for file in home.glob("state.db*"):
        assert SECRET.encode() not in file.read_bytes(), file
    if not daemon.alive:
        daemon.start()
    assert daemon.ask("anna", "do you know me?").endswith("do you know me?")


def test_it_asks_before_it_deletes(home: Path, server: ServerProcess) -> None:
    with daemon_of(home, server) as daemon:
        daemon.ask("anna", "hello")
        for answer, left in (("n", 1), ("y", 0)):
            with Keyboard(["sessions", "delete", "anna"], home=home) as keyboard:
                keyboard.wait_for("[y/N]")
                keyboard.enter(answer)
                assert keyboard.wait_exit() == left
            assert len(daemon.call("GET", "/v1/sessions").json["sessions"]) == left


def test_where_nothing_is_kept_it_says_so(home: Path) -> None:
    done = command("sessions", "list", home=home)
    assert (done.code, done.err) == (1, f"teaagentd: {home}: nothing is kept there yet\n")
    assert not (home / "state.db").exists()


def test_a_broken_configuration_is_no_hindrance(home: Path, server: ServerProcess) -> None:
    with daemon_of(home, server) as daemon:
        daemon.ask("anna", "hello")
    (home / "config.toml").write_text("broken [")
    assert "hello" in command("sessions", "show", "anna", home=home).out
