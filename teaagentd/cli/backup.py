"""`teaagentd backup` and `teaagentd restore`: everything of a home in one file, and back."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath

import click

from teaagentd.cli.console import put, say
from teaagentd.cli.exits import DISK, Failure
from teaagentd.cli.options import current_home, home_option
from teaagentd.home import Home
from teaagentd.store import HomeLock, snapshot

_FOLDER = "teaagentd"
"""What every name in a backup begins with."""
_KEPT = ("state.db", "config.toml", "workspace", "files")
_BESIDE = ("state.db-wal", "state.db-shm", "state.db-journal")


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@home_option
def backup(file: Path | None) -> None:
    """Write everything of the home into one file.

    Also while the daemon runs. Without FILE it is named after the time, in this folder. It holds
    every conversation, and keys that stand in config.toml; nobody but you can open it.
    """
    home = current_home()
    if not home.state_file.exists():
        raise Failure(f"{home.root}: nothing is kept there yet; there is nothing to back up")
    target = (file or Path(f"teaagentd-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")).absolute()
    if target.exists():
        raise Failure(f"{target} exists already, and was not written over")
    with _on_disk(target.parent), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        copy = Path(folder) / "state.db"
        snapshot.take(home.state_file, copy)
        draft = Path(folder) / "backup"
        _pack(home, copy, draft)
        os.link(draft, target)
    put(str(target))


def _pack(home: Home, database: Path, draft: Path) -> None:
    with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            archive.add(database, f"{_FOLDER}/state.db")
            if home.config_file.is_file():
                archive.add(home.config_file, f"{_FOLDER}/config.toml")
            for folder in (home.workspace, home.files):
                if folder.is_dir():
                    archive.add(folder, f"{_FOLDER}/{folder.name}", filter=_plain)
        stream.flush()
        os.fsync(stream.fileno())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.isfile() or member.isdir():
        return member
    say(f"warning: {member.name} is no plain file, and is left out")
    return None


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@home_option
def restore(file: Path) -> None:
    """Put back what a backup holds.

    The daemon must not run. What the home holds now is not written over: it is moved into a folder
    in it, which is named.
    """
    home = current_home()
    home.create()
    with HomeLock(home.root), _on_disk(home.root):
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=home.root) as folder:
            found = Path(folder)
            _unpack(file, found)
            snapshot.verify(found / "state.db")
            aside = _set_aside(home)
            for name in _KEPT:
                if (found / name).exists():
                    os.rename(found / name, home.root / name)
        _sync(home.root)
    if aside is not None:
        say(f"What was there before is in {aside}.")
    put(f"{home.root} is as it was when {file.name} was made.")


def _unpack(file: Path, folder: Path) -> None:
    """Write the plain files of a backup into `folder`. Raises `Failure` for anything else: then
    nothing of it was used."""
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                path = _place(member.name)
                if path is None or not (member.isfile() or member.isdir()):
                    raise Failure(f"{file}: {member.name!r} is no part of a backup; not used")
                target = folder.joinpath(*path.parts)
                if member.isdir():
                    target.mkdir(mode=0o700, parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with source, open(target, "xb", opener=_closed) as stream:
                    while data := source.read(1 << 20):
                        stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
    except (tarfile.TarError, EOFError) as error:
        raise Failure(f"{file}: is no whole backup ({error}); nothing was changed") from None
    if not (folder / "state.db").is_file():
        raise Failure(f"{file}: holds no state.db, so it is no backup; nothing was changed")


def _place(name: str) -> PurePosixPath | None:
    """Where in the home a member belongs; None if nowhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.parts[:1] != (_FOLDER,):
        return None
    inner = PurePosixPath(*path.parts[1:])
    return inner if inner.parts and inner.parts[0] in _KEPT else None


def _closed(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _set_aside(home: Home) -> Path | None:
    """Move what the home holds into a new folder in it; None if it holds nothing."""
    present = [name for name in (*_KEPT, *_BESIDE) if os.path.lexists(home.root / name)]
    if home.workspace.is_dir() and not any(home.workspace.iterdir()):
        present.remove("workspace")
        home.workspace.rmdir()
    if not present:
        return None
    aside = home.root / f"before-restore-{datetime.now():%Y%m%d-%H%M%S-%f}"
    aside.mkdir(mode=0o700)
    for name in present:
        os.rename(home.root / name, aside / name)
    return aside


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """A disk that is full or closed is one line."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise Failure(f"{place}: {error.strerror}; nothing was lost", DISK) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
