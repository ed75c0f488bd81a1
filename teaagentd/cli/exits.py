"""Exit codes, and the one line that a failure prints. The numbers are those of sysexits.h."""

from __future__ import annotations

from teaagentd.errors import (
    BusFull,
    ConfigError,
    HomeLocked,
    ShuttingDown,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
    TeaAgentError,
)

OK = 0
FAILED = 1
USAGE = 2
FORCED = 3
DAMAGED = 65
NO_DAEMON = 69
DISK = 74
TRY_LATER = 75
CONFIG = 78
INTERRUPTED = 130

MEANINGS = {
    OK: "done",
    FAILED: "it was tried and failed: the turn failed, the message was refused",
    USAGE: "the command line is wrong",
    FORCED: "run: the end was forced before all was finished; the rest goes on at the next start",
    DAMAGED: "the database is damaged, of a later version, or was taken away; it was kept as it is",
    NO_DAEMON: "no daemon is running",
    DISK: "the disk is full, read-only or failing",
    TRY_LATER: "not now: the inbox is full, the home is in use, or the wait was too short",
    CONFIG: "the configuration cannot be used; another start will not change that",
    INTERRUPTED: "interrupted from the keyboard, or told to end",
}
"""As the README has them; `run` under systemd is not restarted after 65 and 78."""


class Failure(TeaAgentError):
    """A command that ends in one line and an exit code of its own."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[TeaAgentError], int], ...] = (
    (ConfigError, CONFIG),
    (HomeLocked, TRY_LATER),
    (BusFull, TRY_LATER),
    (ShuttingDown, TRY_LATER),
    (StoreDamaged, DAMAGED),
    (StoreTooNew, DAMAGED),
    (StoreUnavailable, DISK),
)


def exit_code(error: TeaAgentError) -> int:
    """The code that a command ends with for `error`."""
    if isinstance(error, Failure):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
