"""A changed configuration is taken up by a daemon that runs, as a whole or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import daemon_plugin
from tests.daemon.conftest import Effects, Model, said
from tests.daemon_process import Box, DaemonProcess, plugin_folder, until
from tests.strict_server import ServerProcess


class Configured:
    """A daemon whose provider, tools and channels stand in its file, which the test rewrites."""

    def __init__(self, box: Box, model: Model) -> None:
        self.url = model.url
        self.model_name = "strict"
        self.file = box.home / "config.toml"
        box.home.mkdir(mode=0o700)
        self.daemon = DaemonProcess(
            box.home,
            path=[plugin_folder(box.root / "plugin", daemon_plugin.POINTS)],
            environ={daemon_plugin.FOLDER_VARIABLE: str(box.root)},
        )

    def text(self, *, agent: str = "", rest: str = "", url: str = "") -> str:
        return (
            f'[provider]\ntype = "openai"\nbase_url = "{url or self.url}"\n'
            f'api_key = "a-key-of-the-test"\nmodel = "{self.model_name}"\n'
            f'[tools]\nenabled = ["current_time", "marked"]\n[agent]\n{agent}\n{rest}\n'
        )

    def write(self, text: str | bytes) -> None:
        """As an editor saves: another file takes the place of the one before."""
        draft = self.file.with_suffix(".new")
        draft.write_bytes(text if isinstance(text, bytes) else text.encode())
        draft.chmod(0o600)
        draft.replace(self.file)

    @property
    def state(self) -> dict[str, object]:
        found: dict[str, object] = self.daemon.status()["configuration"]
        return found

    def look(self) -> None:
        self.daemon.signal(signal.SIGHUP)

    def take_up(self, text: str) -> None:
        """Write it, and wait until it is in force."""
        before = self.state["generation"]
        assert isinstance(before, int)
        self.write(text)
        self.look()
        until("it is taken up", lambda: self.state["generation"] == before + 1)
        assert self.state["problem"] is None

    def refuse(self, text: str | bytes) -> str:
        """Write what cannot be used, and wait until that is said."""
        before = self.state
        self.write(text)
        self.look()
        until("it is refused", lambda: self.state["problem"] not in (None, before["problem"]))
        assert self.state["generation"] == before["generation"]
        return str(self.state["problem"])


@pytest.fixture
def configured(box: Box, model: Model) -> Iterator[Configured]:
    found = Configured(box, model)
    found.write(found.text())
    found.daemon.start()
    yield found
    found.daemon.__exit__()


def test_a_saved_file_is_noticed_by_itself(configured: Configured, model: Model) -> None:
    """And the next turn is of the new configuration."""
    configured.daemon.ask("anna", "who are you?")
    configured.write(configured.text(agent='name = "Ada"'))
    until("it is noticed", lambda: configured.state["generation"] == 2)
    configured.daemon.ask("anna", "and now?")
    before, after = (said(body, "system")[0] for body in model.requests)
    assert "Ada" not in before
    assert "Ada" in after


BROKEN: tuple[tuple[str, bytes, str], ...] = (
    ("a trailing comma", b"[agent]\nmax_iterations = 5,\n", "line 2"),
    ("no bytes", b"", "gone or empty"),
    ("half a file", b'[agent]\nname = "Te', "line 2"),
    ("a list", b"[]\n", "line 1"),
    ("no table", b"null\n", "line 1"),
    ("a wrong type", b'[agent]\nmax_iterations = "many"\n', "agent.max_iterations"),
    ("a value out of range", b"[agent]\nmax_concurrent_turns = 0\n", "max_concurrent_turns"),
    ("a section that is none", b"agent = 5\n", "agent"),
    ("a guarding key misspelt", b'[channels.x]\nallowfrom = ["a"]\n', "allow_from"),
    ("a variable that is not set", b'[agent]\nname = "${NOT_SET_HERE}"\n', "NOT_SET_HERE"),
    ("no text", b"\xff\xfe\x00", "UTF-8"),
    ("an unknown provider", b'[provider]\ntype = "nobody"\n', "nobody"),
    ("an unknown tool", b'[tools]\nenabled = ["nothing"]\n', "nothing"),
    ("an unknown channel", b"[channels.nowhere]\n", "nowhere"),
    ("senders that are no list", b'[channels.x]\ntype="filebox"\nallow_from = 5\n', "allow_from"),
)


def test_what_cannot_be_used_changes_nothing_and_is_said_once(
    configured: Configured, model: Model, effects: Effects
) -> None:
    """Under a turn that is at work, which goes on. (openclaw/openclaw#13186, #59964)"""
    daemon = configured.daemon
    configured.take_up(configured.text(agent='name = "Ada"'))
    first = daemon.post("anna", '[[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    for what, content, reason in BROKEN:
        problem = configured.refuse(content)
        assert reason in problem, what
        assert str(configured.file) in problem, what
        configured.look()
        daemon.ask("bert", what)
        assert "Ada" in said(model.requests[-1], "system")[0], what
    configured.file.unlink()
    configured.look()
    configured.file.mkdir()
    configured.look()
    until("it is refused", lambda: "folder" in str(configured.state["problem"]))
    configured.file.rmdir()
    effects.release("gate")
    assert daemon.answer("api:anna", first)["content"].endswith("held for gate")
    assert daemon.log().count("configuration_kept") <= len(BROKEN) + 3
    for what, _, reason in BROKEN:
        lines = [line for line in daemon.log().splitlines() if "configuration_kept" in line]
        assert any(reason in line for line in lines), what
    configured.take_up(configured.text(agent='name = "Eve"'))
    daemon.ask("anna", "still there?")
    assert "Eve" in said(model.requests[-1], "system")[0]


def test_a_half_right_file_is_not_half_applied(configured: Configured, model: Model) -> None:
    """(puremachinery/carapace#412)"""
    rest = '[channels.filebox]\nallow_from = ["eve"]\n'
    bad = configured.text(agent='name = "Ada"\nmax_concurrent_turns = 1', rest=rest)
    configured.refuse(bad.replace('type = "openai"', 'type = "nobody"'))
    status = configured.daemon.status()
    assert status["channels"] == []
    assert status["slots"]["limit"] == 8
    configured.daemon.ask("anna", "who are you?")
    assert "Ada" not in said(model.requests[-1], "system")[0]


def test_a_turn_keeps_the_model_that_it_began_with(
    configured: Configured, model: Model, effects: Effects
) -> None:
    daemon = configured.daemon
    with ServerProcess() as other:
        first = daemon.post("anna", '[[tool:hold {"name": "gate"}]]')
        effects.wait("hold gate")
        configured.take_up(configured.text(url=other.url))
        daemon.ask("bert", "of the new one")
        assert [one["body"]["messages"][-1]["content"][-14:] for one in other.requests] == [
            "of the new one"
        ]
        effects.release("gate")
        assert daemon.answer("api:anna", first)["content"].endswith("held for gate")
        assert len(other.requests) == 1
        assert said(model.requests[-1], "tool") == ["held for gate"]
        daemon.ask("anna", "and now the new one")
        assert len(other.requests) == 2
        assert [one["refused"] for one in other.requests] == [None, None]


def test_a_smaller_cap_works_as_turns_end(configured: Configured, effects: Effects) -> None:
    daemon = configured.daemon
    posted = {chat: daemon.post(chat, f'[[tool:hold {{"name": "{chat}"}}]]') for chat in "ab"}
    for chat in "ab":
        effects.wait(f"hold {chat}")
    configured.take_up(configured.text(agent="max_concurrent_turns = 1"))
    assert daemon.status()["slots"]["held"] == 2
    third = daemon.post("c", "me too")
    until("it waits", lambda: daemon.status()["slots"]["waiting"] == 1)
    effects.release("a")
    daemon.answer("api:a", posted["a"])
    assert daemon.status()["slots"]["waiting"] == 1
    effects.release("b")
    assert daemon.answer("api:c", third)["content"].endswith("me too")
    assert daemon.status()["slots"]["held"] <= 1


def test_channels_come_change_and_go(configured: Configured, effects: Effects) -> None:
    """Exactly one of each, however often. (zeroclaw-labs/zeroclaw#8633)"""
    daemon = configured.daemon
    box = "[channels.filebox]\ncolour = {}\n[channels.second]\ntype = 'filebox'\n"
    configured.take_up(configured.text(rest=box.format(0)))
    daemon.post("bob", "hello", channel="filebox")
    until("it is sent", lambda: len(effects.notes("sent")) >= 1)
    sent = len(effects.notes("sent"))
    threads = _threads(daemon)
    for colour in range(1, 6):
        configured.take_up(configured.text(rest=box.format(colour)))
    assert [one["name"] for one in daemon.status()["channels"]] == ["filebox", "second"]
    assert {one["state"] for one in daemon.status()["channels"]} == {"running"}
    daemon.post("bob", "once more", channel="filebox")
    until("it is sent", lambda: len(effects.notes("sent")) > sent)
    daemon.post("bob", "[[say:HOLD this]]", channel="filebox")
    until("it is being sent", lambda: effects.notes("held"))
    configured.take_up(configured.text(rest="[channels.second]\ntype = 'filebox'\n"))
    assert [one["name"] for one in daemon.status()["channels"]] == ["second"]
    assert daemon.offer("bob", "anyone?", channel="filebox").status == 422
    effects.release("send")
    held = "SELECT state FROM outbox WHERE content LIKE '%HOLD%'"
    until("what was being sent is recorded", lambda: daemon.query(held) == [("sent",)])
    # The watchers of before sleep out their steps.
    until("no thread is left over", lambda: _threads(daemon) <= threads)


def _threads(daemon: DaemonProcess) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))


def test_a_sender_who_is_taken_off_the_list_has_no_effect_from_then_on(
    configured: Configured, model: Model, effects: Effects
) -> None:
    """What is at work for him ends, what waits is set aside, what comes is refused; the others
    are not disturbed, and he may be let in again."""
    daemon = configured.daemon
    box = "[channels.filebox]\nallow_from = {}\n"
    configured.take_up(configured.text(rest=box.format('["bob", "eve", 7]')))
    first = daemon.post("b", "#1 [[hang]]", channel="filebox", sender_id="bob")
    model.wait_asked("#1")
    second = daemon.post("b", "#2 and this", channel="filebox", sender_id="bob")
    third = daemon.post("e", "#3 [[hang]]", channel="filebox", sender_id="eve")
    model.wait_asked("#3")
    configured.take_up(configured.text(rest=box.format('["eve", 7]')))
    for posted in (first, second):
        text = daemon.answer("filebox:b", posted)["content"]
        assert "may no longer speak" in text
    assert [turn["session_key"] for turn in daemon.status()["turns"]] == ["filebox:e"]
    refused = daemon.offer("b", "#4 me?", channel="filebox", sender_id="bob")
    assert (refused.status, refused.json["field"]) == (403, "sender_id")
    assert daemon.offer("b", "/stop", channel="filebox", sender_id="bob").status == 403
    assert daemon.offer("b", "#5 nobody", channel="filebox").status == 403
    assert daemon.offer("s", "#6 a number", channel="filebox", sender_id="7").status == 202
    assert [row["id"] for row in daemon.call("GET", "/v1/inbox/dead").json["messages"]] == [second]
    assert not any("#2" in str(body) for body in model.requests)
    daemon.kill()
    daemon.start()
    assert daemon.offer("b", "#7 still not", channel="filebox", sender_id="bob").status == 403
    configured.take_up(configured.text(rest=box.format('["bob", "eve"]')))
    again = daemon.call("POST", f"/v1/inbox/{second}/retry").json["id"]
    assert daemon.answer("filebox:b", again)["content"].endswith("#2 and this")
    daemon.stop_session("filebox:e")
    assert daemon.answer("filebox:e", third)


def test_senders_who_lost_it_while_the_daemon_was_down_have_lost_it(
    configured: Configured, model: Model
) -> None:
    daemon = configured.daemon
    box = "[channels.filebox]\nallow_from = {}\n"
    configured.take_up(configured.text(rest=box.format('["bob"]')))
    posted = daemon.post("b", "#1 [[hang]]", channel="filebox", sender_id="bob")
    model.wait_asked("#1")
    daemon.kill()
    configured.write(configured.text(rest=box.format("[]")))
    daemon.start()
    assert "may no longer speak" in daemon.answer("filebox:b", posted)["content"]
    assert len([body for body in model.requests if "#1" in str(body)]) == 1


def test_logging_follows_and_forgets_no_secret(configured: Configured) -> None:
    configured.take_up(
        configured.text(rest='[logging]\nlevel = "error"').replace("a-key-of-the-test", "other-key")
    )
    configured.write("broken [")
    configured.look()
    until("it is refused", lambda: configured.state["problem"])
    assert "configuration_kept" not in configured.daemon.log()
    configured.take_up(configured.text(rest='[logging]\nlevel = "debug"\nformat = "json"'))
    until("it is in JSON", lambda: '"event":"configuration_applied"' in configured.daemon.log())
    assert "a-key-of-the-test" not in configured.daemon.log()
    assert "other-key" not in configured.daemon.log()


def test_a_secret_in_a_file_of_its_own_is_watched_too(
    configured: Configured, box: Box, model: Model
) -> None:
    secret = box.root / "key"
    secret.write_text("first-key-of-all")
    secret.chmod(0o600)
    text = configured.text().replace('api_key = "a-key-of-the-test"', f'api_key_file = "{secret}"')
    configured.take_up(text)
    secret.write_text("second-key-of-all")
    until("it is noticed", lambda: configured.state["generation"] == 3)
    assert configured.daemon.ask("anna", "hello").endswith("hello")


def test_a_link_to_the_file_is_followed(configured: Configured, box: Box) -> None:
    target = box.root / "kept-elsewhere.toml"
    target.write_text(configured.text())
    target.chmod(0o600)
    configured.file.unlink()
    os.symlink(target, configured.file)
    target.write_text(configured.text(agent='name = "Ada"'))
    until("it is noticed", lambda: configured.state["generation"] == 2)
