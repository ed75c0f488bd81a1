"""`teaagentd doctor`: look everything over, and say how to mend what is wrong."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import click
import httpx2
import orjson

from teaagentd.cli.client import Client, NoDaemon, Refused
from teaagentd.cli.config import check_settings
from teaagentd.cli.console import put
from teaagentd.cli.exits import FAILED, OK
from teaagentd.cli.options import current_home, home_option, run_async
from teaagentd.config.load import load_settings
from teaagentd.config.settings import ModelSection
from teaagentd.errors import ConfigError, StoreError
from teaagentd.home import Home
from teaagentd.store import health
from teaagentd.store.lock import is_held

Level = Literal["ok", "warning", "failure"]

_LITTLE_BYTES, _LEAST_BYTES = 500_000_000, 50_000_000
"""Free space that is little, and that is too little to rely on."""
_AHEAD_MS = 60_000
_MODEL_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found; `mend` is what to do, empty where nothing is."""

    check: str
    level: Level
    found: str
    mend: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON array.")
@home_option
def doctor(as_json: bool) -> int:
    """Look everything over, and say how to mend it.

    Beside a running daemon or without one; nothing is changed. The model's server is asked for its
    list of models, which costs nothing. Exit code 1: something fails.
    """
    home = current_home()
    findings = [finding for check in CHECKS for finding in check(home)]
    if as_json:
        put(orjson.dumps([asdict(finding) for finding in findings]).decode())
    else:
        for finding in findings:
            put(f"{finding.level:<8} {finding.check}: {finding.found}")
            if finding.mend:
                put(f"         {finding.mend}")
    return FAILED if any(finding.level == "failure" for finding in findings) else OK


def _home(home: Home) -> Iterator[Finding]:
    if not home.root.is_dir():
        yield Finding(
            check="home",
            level="failure",
            found=f"{home.root} is no folder",
            mend="`teaagentd init` makes it",
        )
        return
    for path in (home.root, home.config_file, home.state_file):
        if not path.exists():
            continue
        status = path.stat()
        if status.st_uid != os.geteuid():
            yield Finding(
                check="home",
                level="warning",
                found=f"{path} belongs to another user (uid {status.st_uid})",
                mend=f"run this as that user, or: chown {os.geteuid()} {path}",
            )
        elif status.st_mode & 0o077:
            yield Finding(
                check="home",
                level="warning",
                found=f"others can open {path}",
                mend=f"chmod go= {path}",
            )
    if not os.access(home.root, os.W_OK):
        yield Finding(
            check="home",
            level="failure",
            found=f"{home.root} cannot be written",
            mend="mend its permissions, or the mount that it is on",
        )
    else:
        yield Finding(check="home", level="ok", found=str(home.root))


def _configuration(home: Home) -> Iterator[Finding]:
    try:
        loaded = load_settings(home)
        check_settings(loaded)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield Finding(check="configuration", level="failure", found=line)
        return
    for warning in loaded.warnings:
        yield Finding(check="configuration", level="warning", found=warning)
    provider = loaded.settings.provider
    yield Finding(
        check="configuration", level="ok", found=f"{provider.type} answers, as set or chosen"
    )


def _disk(home: Home) -> Iterator[Finding]:
    place = home.root if home.root.exists() else home.root.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        yield Finding(check="disk", level="failure", found=f"{place}: {error.strerror}")
        return
    level: Level = "ok"
    if free < _LITTLE_BYTES:
        level = "failure" if free < _LEAST_BYTES else "warning"
    mend = "" if level == "ok" else "make room: with a full disk new messages are refused"
    yield Finding(check="disk", level=level, found=f"{_size(free)} free", mend=mend)


def _database(home: Home) -> Iterator[Finding]:
    if not home.state_file.exists():
        yield Finding(check="database", level="ok", found="there is none yet")
        return
    try:
        found = health.look(home.state_file)
    except StoreError as error:
        yield Finding(check="database", level="failure", found=str(error))
        return
    if found.problem is not None:
        yield Finding(
            check="database",
            level="failure",
            found=f"{home.state_file} is not sound: {found.problem}",
            mend="stop the daemon, move it away, and `teaagentd restore` a backup",
        )
        return
    what = f"sound, {_size(found.bytes)}, conversations: {found.sessions}"
    yield Finding(check="database", level="ok", found=what)
    if found.dead_rows:
        yield Finding(
            check="messages",
            level="warning",
            found=f"{found.dead_rows} were given up after three attempts",
            mend="`teaagentd inbox list` shows them; `inbox retry` or `inbox drop` decides",
        )
    if found.dead_letters:
        yield Finding(
            check="replies",
            level="warning",
            found=f"{found.dead_letters} could not be delivered, for good",
            mend="`teaagentd outbox list` shows them; `outbox retry` or `outbox drop` decides",
        )
    for alert in found.alerts:
        if alert.kind not in ("dead_letters", "dead_messages"):
            yield Finding(check="alerts", level="warning", found=alert.text)
    ahead_ms = (found.newest_at or 0) - time.time_ns() // 1_000_000
    if ahead_ms > _AHEAD_MS:
        yield Finding(
            check="clock",
            level="warning",
            found=f"the newest message is {ahead_ms // 1000} s in the future",
            mend="the clock was set back; set it right",
        )
    else:
        yield Finding(check="clock", level="ok", found="behind no message")


def _daemon(home: Home) -> Iterator[Finding]:
    async def ask() -> str:
        async with Client(home.socket) as client:
            status = await client.status()
            await client.health()
        draining = ", and is ending" if status.get("draining") else ""
        return f"process {status.get('pid')} answers{draining}"

    try:
        yield Finding(check="daemon", level="ok", found=run_async(ask))
    except NoDaemon:
        if is_held(home.root):
            yield Finding(
                check="daemon",
                level="failure",
                found="a process holds the home and does not answer",
                mend="if it is not just starting or ending, end it and start it again",
            )
        else:
            yield Finding(check="daemon", level="ok", found="none is running")
    except Refused as error:
        yield Finding(
            check="daemon", level="failure", found=str(error), mend="look at its log; restart it"
        )


def _model(home: Home) -> Iterator[Finding]:
    try:
        loaded = load_settings(home)
    except ConfigError:
        return
    for place, section in loaded.settings.models():
        check = "model" if place == "provider" else place.rpartition(".")[2]
        if section.type == "local":
            yield Finding(check=check, level="ok", found="its file is there")
        elif section.type in _DEFAULT_URLS:
            for key in section.all_keys() or [""]:
                yield _server(check, place, section, key)


_DEFAULT_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
_ANTHROPIC = {"anthropic-version": "2023-06-01"}


def _server(check: str, place: str, section: ModelSection, key: str) -> Finding:
    """Whether the server takes our key."""
    kind = section.type or ""
    base_url = (section.base_url or _DEFAULT_URLS[kind]).rstrip("/")
    address = base_url.rpartition("@")[2].removeprefix("https://").removeprefix("http://")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if kind == "anthropic":
        base_url = f"{base_url.removesuffix('/v1')}/v1"
        headers |= _ANTHROPIC
    try:
        answer = httpx2.get(f"{base_url}/models", headers=headers, timeout=_MODEL_S)
    except httpx2.HTTPError as error:
        return Finding(
            check=check,
            level="failure",
            found=f"{address} cannot be reached: {str(error) or type(error).__name__}",
            mend=f"is it running, and is {place}.base_url right?",
        )
    if answer.status_code in (401, 403):
        further = bool(section.all_keys()) and key != section.all_keys()[0]
        return Finding(
            check=check,
            level="failure",
            found=f"{address} does not take the key (HTTP {answer.status_code})",
            mend=f"set {place}.{'api_keys' if further else 'api_key'} right",
        )
    if not answer.is_success:
        return Finding(
            check=check,
            level="warning",
            found=f"{address} answered HTTP {answer.status_code} to the question for its models",
            mend=f"is {place}.base_url the address of its API?",
        )
    return Finding(check=check, level="ok", found=f"{address} answers")


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


CHECKS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    _home,
    _configuration,
    _disk,
    _database,
    _daemon,
    _model,
)
