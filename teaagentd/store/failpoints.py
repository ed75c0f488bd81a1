"""Fail points: the process kills itself just before or after a named commit, for crash tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from teaagentd.errors import ConfigError
from teaagentd.store.commits import COMMITS

VARIABLE = "TEAAGENTD_FAILPOINT"
_SIDES = ("before", "after")


def from_environment(
    environ: Mapping[str, str] = os.environ,
) -> Callable[[str, str], None] | None:
    """What `Store.open` takes as `on_commit`, or None where the variable is unset or empty.

    The variable is `<name>:<before|after>[:<nth>]`, for example `T1.begin:after:2`: the process
    sends itself SIGKILL just after the second commit of that name. Raises `ConfigError`.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    name, side, nth = _parse(text)
    left = nth

    def strike(committed: str, when: str) -> None:
        nonlocal left
        if committed == name and when == side:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return strike


def _parse(text: str) -> tuple[str, str, int]:
    name, side, count = (*text.split(":"), "", "")[:3]
    if name not in COMMITS or side not in _SIDES or text.count(":") > 2:
        raise ConfigError(
            f"{VARIABLE}={text!r}: write <name>:<before|after>[:<nth>], "
            f"with a name of {', '.join(COMMITS)}"
        )
    if count and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(f"{VARIABLE}={text!r}: the count must be a number from 1")
    return name, side, int(count or "1")
