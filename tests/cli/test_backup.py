"""`teaagentd backup` and `restore`: one file from which a home can be had again."""

from __future__ import annotations

import io
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.commands import command, provider
from tests.daemon_process import DaemonProcess, until
from tests.strict_server import ServerProcess


def made(home: Path, server: ServerProcess, name: str = "b.tar.gz") -> Path:
    """A backup of a home that was talked to."""
    assert command("ask", "hello", "--session", "anna", home=home, **provider(server.url)).code == 0
    file = home.parent / name
    done = command("backup", str(file), home=home)
    assert (done.code, done.out) == (0, f"{file}\n"), done.err
    return file


def contents(home: Path) -> dict[str, bytes]:
    """Every file of a home but those that come and go with a process."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and "run" not in path.relative_to(home).parts
    }


def test_another_home_goes_on_where_the_backup_was_made(home: Path, server: ServerProcess) -> None:
    """Made while a turn is at work: it is answered there, and in the first home, too."""
    server.script([{"match": "long work", "hang": True}])
    file, other = home.parent / "b.tar.gz", home.parent / "other"
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        daemon.ask("anna", "hello")
        (home / "workspace" / "notes").mkdir()
        (home / "workspace" / "notes" / "tea.md").write_text("green")
        waiting = daemon.post("anna", "long work")
        until("the model was asked", lambda: len(server.requests) == 2)
        done = command("backup", str(file), home=home)
        assert (done.code, done.err) == (0, "")
        assert daemon.alive
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command("restore", str(file), home=other).code == 0
    assert (other / "workspace" / "notes" / "tea.md").read_text() == "green"
    with DaemonProcess(other, provider=server.url) as daemon:
        daemon.start()
        assert daemon.answer("api:anna", waiting)["content"].endswith("long work")
        said = [one["content"] for one in daemon.session("api:anna")["messages"]]
        assert (said[0], said[2]) == ("hello", "long work")


def test_what_was_there_is_moved_aside_and_named(home: Path, server: ServerProcess) -> None:
    file = made(home, server)
    command("ask", "two", "--session", "anna", home=home, **provider(server.url))
    (home / "workspace" / "SOUL.md").write_text("changed since")
    done = command("restore", str(file), home=home)
    assert done.code == 0
    (aside,) = home.glob("before-restore-*")
    assert str(aside) in done.err
    assert (aside / "workspace" / "SOUL.md").read_text() == "changed since"
    assert (home / "workspace" / "SOUL.md").read_text() != "changed since"
    with closing(sqlite3.connect(aside / "state.db")) as before:
        assert before.execute("SELECT count(*) FROM messages").fetchone() == (4,)
    with closing(sqlite3.connect(home / "state.db")) as now:
        assert now.execute("SELECT count(*) FROM messages").fetchone() == (2,)


def test_nothing_is_restored_under_a_running_daemon(home: Path, server: ServerProcess) -> None:
    file = made(home, server)
    with DaemonProcess(home, provider=server.url) as daemon:
        daemon.start()
        done = command("restore", str(file), home=home)
        assert done.code == 75
        assert "in use" in done.err
        assert daemon.ask("anna", "two") == "Answer 2."


def test_nothing_is_written_over(home: Path, server: ServerProcess) -> None:
    file = made(home, server)
    before = file.read_bytes()
    done = command("backup", str(file), home=home)
    assert done.code == 1
    assert "exists already" in done.err
    assert file.read_bytes() == before
    assert [path.name for path in home.parent.iterdir() if path.name.startswith("tmp")] == []


def test_a_home_with_nothing_in_it_has_no_backup(home: Path) -> None:
    done = command("backup", home=home)
    assert (done.code, done.out) == (1, "")
    assert "nothing to back up" in done.err


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


def _garbage(file: Path) -> None:
    file.write_bytes(b"not an archive at all")


def _members(*members: tuple[tarfile.TarInfo, bytes]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with tarfile.open(file, "w:gz") as archive:
            for info, data in members:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return write


def _named(name: str, data: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), data


def _link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


@pytest.mark.parametrize(
    "spoil",
    [
        _cut,
        _garbage,
        _members(),
        _members(_named("teaagentd/config.toml")),
        _members(_named("teaagentd/state.db", b"no database " * 1000)),
        _members(_named("teaagentd/../evil")),
        _members(_named("/etc/evil")),
        _members(_named("evil")),
        _members(_named("teaagentd/run/teaagentd.sock")),
        _members(_link("teaagentd/workspace", "/etc")),
        _members(_link("teaagentd/state.db", "/etc/passwd")),
    ],
)
def test_what_is_no_whole_backup_changes_nothing(
    home: Path, server: ServerProcess, spoil: Callable[[Path], None]
) -> None:
    file = made(home, server)
    spoil(file)
    before = contents(home)
    done = command("restore", str(file), home=home)
    assert done.code in (1, 65)
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    assert contents(home) == before
    assert not (home.parent / "evil").exists()


def test_a_database_of_a_later_version_is_refused(home: Path, server: ServerProcess) -> None:
    made(home, server)
    with closing(sqlite3.connect(home / "state.db")) as state:
        state.execute("PRAGMA user_version = 9999")
    done = command("backup", str(home.parent / "later.tar.gz"), home=home)
    assert done.code == 65
    assert not (home.parent / "later.tar.gz").exists()
