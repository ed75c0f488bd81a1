"""The lock on a home: held by the living process through the operating system, never by a number
in a file. It goes with the process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from teaagentd.errors import HomeLocked, StoreUnavailable

_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class HomeLock:
    """Holds `<home>/run/teaagentd.lock` from `acquire` to `release` or the process's end.

    What stands in the file is only for the message to a second process. No one is ever
    signalled on its word.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, home: Path) -> HomeLock:
        """Raises `HomeLocked` naming the holder, `StoreUnavailable` where no lock can be made."""
        path = home / "run" / "teaagentd.lock"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _locked(path, home)
        except OSError as error:
            mend = "Make it writable" if error.errno in _CLOSED else "Mend that"
            raise StoreUnavailable(
                f"{error.filename or path}: cannot lock this home ({error.strerror}). Nothing was "
                f"changed. {mend}, or choose another home with --home"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _description().encode(), 0)
        return cls(path, descriptor)

    def release(self) -> None:
        """Give the home free. Idempotent. The file stays: removing it could unlock another's."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _locked(path: Path, home: Path) -> int:
    """A descriptor of the lock file that holds its lock; children do not inherit it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            text = _read(descriptor)
            os.close(descriptor)
            raise HomeLocked(str(home), text) from None
        except BaseException:
            os.close(descriptor)
            raise
        # The file was replaced between opening and locking: this lock keeps nobody out.
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return text or "another process"


def _description() -> str:
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"process {os.getpid()} (since {started})"
