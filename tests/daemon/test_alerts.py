"""What the real daemon tells its owner of, and what it does when its file is taken away."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.daemon.conftest import MakeDaemon, Model
from tests.daemon_process import DaemonProcess, until


def notices(daemon: DaemonProcess, key: str) -> list[str]:
    return [one["content"] for one in daemon.all_replies(key) if one["kind"] == "notice"]


def test_a_broken_change_is_told_in_the_chat_and_in_status(daemon: DaemonProcess) -> None:
    daemon.ask("anna", "hello")
    file = daemon.home / "config.toml"
    before = file.read_text()
    file.write_text("broken [")
    daemon.signal(signal.SIGHUP)
    until("it is told", lambda: notices(daemon, "api:anna"))
    [alert] = daemon.status()["alerts"]
    assert (alert["kind"], alert["told_at"] is not None) == ("configuration", True)
    assert str(file) in alert["text"]
    assert b'teaagentd_alerts{kind="configuration"} 1.0' in daemon.call("GET", "/metrics").body
    file.write_text(before)
    daemon.signal(signal.SIGHUP)
    until("it is over", lambda: not daemon.status()["alerts"])
    assert len(notices(daemon, "api:anna")) == 1


def test_letters_that_were_given_up_are_told_after_a_restart_once(
    make_daemon: MakeDaemon,
) -> None:
    """Not by the channel that gave them up."""
    daemon = make_daemon({"TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}'})
    daemon.start()
    daemon.ask("anna", "hello")
    daemon.post("bob", "[[say:REFUSE this]]", channel="filebox")
    until("it is refused", lambda: daemon.status()["dead_letters"] == 1)
    for _ in range(2):
        assert daemon.terminate() == 0
        daemon.start()
        until("it is known", lambda: daemon.status()["alerts"])
    assert len(notices(daemon, "api:anna")) == 1
    assert "outbox list" in notices(daemon, "api:anna")[0]
    assert notices(daemon, "filebox:bob") == []


def test_a_lost_file_is_saved_and_nothing_begins_without_it(
    daemon: DaemonProcess, model: Model
) -> None:
    """It is never replaced by an empty one."""
    daemon.ask("anna", "my name is Anna")
    state = daemon.home / "state.db"
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (daemon.home / name).unlink()
    daemon.signal(signal.SIGHUP)
    assert daemon.wait_exit() == 65
    rescued = daemon.home / "state.db.rescued"
    assert rescued.exists()
    assert "state.db.rescued" in daemon.log()
    daemon.launch()
    assert daemon.wait_exit() == 65
    assert not state.exists()
    rescued.rename(state)
    daemon.start()
    daemon.ask("anna", "what is my name?")
    assert "my name is Anna" in str(model.requests[-1])
    assert any("I end now" in text for text in notices(daemon, "api:anna"))


def test_another_file_in_its_place_is_not_written_to(daemon: DaemonProcess) -> None:
    daemon.ask("anna", "hello")
    state = daemon.home / "state.db"
    other = Path(f"{state}.other")
    other.write_bytes(state.read_bytes())
    before = other.read_bytes()
    other.replace(state)
    daemon.signal(signal.SIGHUP)
    assert daemon.wait_exit() == 65
    assert state.read_bytes() == before
    assert (daemon.home / "state.db.rescued").exists()
