"""The lock on a home: held by the living process through the operating system, never by a number
in a file. It goes with the process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from teaagentd.errors import HomeLocked, StoreUnavailable

_LOOK_S = 0.05
"""`is_held` takes the lock for an instant: that must not keep a daemon from starting."""
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class HomeLock:
    """Holds `<home>/run/teaagentd.lock` from `acquire` to `release` or the process's end.

    What stands in the file is only for the message to a second process. No one is ever
    signalled on its word.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises `HomeLocked` naming the holder, `StoreUnavailable` where no lock can be made."""
        path = self.home / "run" / "teaagentd.lock"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _locked(path, self.home)
            _describe(descriptor)
        except OSError as error:
            mend = "Make it writable" if error.errno in _CLOSED else "Mend that"
            raise StoreUnavailable(
                f"{error.filename or path}: cannot lock this home ({error.strerror}). Nothing was "
                f"changed. {mend}, or choose another home with --home"
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the home free. Idempotent. The file stays: removing it could unlock another's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> HomeLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def is_held(home: Path) -> bool:
    """Whether a living process holds the home. Looks without writing, for an instant only."""
    try:
        descriptor = os.open(home / "run" / "teaagentd.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(path: Path, home: Path) -> int:
    """A descriptor of the lock file that holds its lock; children do not inherit it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _flock(descriptor)
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


def _flock(descriptor: int) -> None:
    """Take the lock. Raises `BlockingIOError` when it is held for longer than a look at it."""
    given_up = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > given_up:
                raise


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return text or "another process"


def _describe(descriptor: int) -> None:
    """Write who holds the lock. On a full disk it goes without."""
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} (since {started})".encode(), 0)
