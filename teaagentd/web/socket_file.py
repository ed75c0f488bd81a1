"""The socket's file: made closed to others, in place of one that a killed daemon left."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

from teaagentd.errors import ConfigError

_LINUX = sys.platform.startswith("linux")
LONGEST_PATH_BYTES = 107 if _LINUX else 103
"""What an address of the system holds; on Linux a longer path is reached through its folder."""


class SocketFile:
    """A bound Unix socket and its file (0600, in a folder with 0700). Blocking, for a thread."""

    def __init__(self, path: Path, bound: socket.socket) -> None:
        self.path = path
        self.socket = bound
        self._identity = _identity(path)

    @classmethod
    def bind(cls, path: Path) -> SocketFile:
        """Bind; nobody can connect before it listens. The caller holds the lock of the home, so
        a socket that is there already is nobody's. Raises `ConfigError`."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _make_way(path)
            _bind(bound, path)
            path.chmod(0o600)
        except BaseException as error:
            bound.close()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"{path}: cannot make the control socket ({error.strerror or error}); mend "
                    "that, or choose another home with --home"
                ) from error
            raise
        return cls(path, bound)

    def remove(self) -> None:
        """Take the file away, if it is still this socket's."""
        self.socket.close()
        if _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)


def _make_way(path: Path) -> None:
    """A closed folder without anything at `path`. Raises `ConfigError` and `OSError`."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{path}: this is not a socket and stands where the control socket belongs; it was "
            "left as it is. Move it away, or choose another home with --home"
        )
    path.unlink()


def _bind(bound: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= LONGEST_PATH_BYTES:
        bound.bind(str(path))
        return
    if not _LINUX:
        raise ConfigError(
            f"{path}: this path is longer than the {LONGEST_PATH_BYTES} bytes that a socket's may "
            "have here; choose a home with a shorter one, with --home"
        )
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
