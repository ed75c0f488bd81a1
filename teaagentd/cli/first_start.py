"""The first start: a commented configuration and a small workspace, written once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files

from teaagentd.cli.console import Say
from teaagentd.config.load import load_settings
from teaagentd.config.text import example
from teaagentd.errors import ConfigError
from teaagentd.home import Home

WORKSPACE_FILES = ("AGENTS.md", "SOUL.md", "USER.md", "HEARTBEAT.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewFile:
    """A file that is to be written, and what for."""

    name: str
    """Relative to the home."""
    text: str
    purpose: str


_PURPOSES = {
    "AGENTS.md": "how it should work",
    "SOUL.md": "its character",
    "USER.md": "what it should know of you",
    "HEARTBEAT.md": "what it should look after by itself",
}


def is_first_start(home: Home) -> bool:
    """Whether no start has been there before; a configuration may be."""
    return not any(os.path.lexists(path) for path in (home.state_file, home.workspace))


def first_start(home: Home, say: Say) -> bool:
    """Prepare a home that holds nothing yet, saying first what will be written. False, and
    nothing is done, if there is anything. Raises `ConfigError`."""
    if not is_first_start(home):
        return False
    write_missing(home, say)
    return True


def write_missing(home: Home, say: Say) -> tuple[str, ...]:
    """Write the configuration and workspace files that are not there; none is ever written over.
    Returns their names. Raises `ConfigError`."""
    configuration, reason = _configuration(home)
    wanted = [configuration, *(_workspace_file(name) for name in WORKSPACE_FILES)]
    missing = [file for file in wanted if not os.path.lexists(home.root / file.name)]
    if not missing:
        return ()
    width = max(len(file.name) for file in missing)
    open_to = "which others can open too" if _is_open(home) else "which nobody but you can open"
    say(f"Writing to {home.root}, {open_to}:")
    for file in missing:
        say(f"  {file.name:<{width}}  {file.purpose}")
    if configuration in missing:
        say(reason)
    home.create()
    for file in missing:
        _write_new(home, file)
    return tuple(file.name for file in missing)


def _is_open(home: Home) -> bool:
    try:
        status = home.root.stat()
    except OSError:
        return False
    return bool(status.st_mode & 0o077) or status.st_uid != os.geteuid()


def _configuration(home: Home) -> tuple[NewFile, str]:
    """The first `config.toml`; the provider is written down in it, so that a key that turns up
    in the environment later does not change who answers and what it costs."""
    loaded = load_settings(home)
    if loaded.choice is not None:
        text, reason = example(loaded.choice.values), loaded.choice.reason
    else:
        text, reason = example(), f"{loaded.settings.provider.type} answers, as configured."
    return NewFile(name="config.toml", text=text, purpose="settings, all explained"), reason


def _workspace_file(name: str) -> NewFile:
    text = files("teaagentd.cli").joinpath("workspace", name).read_text(encoding="utf-8")
    return NewFile(name=f"workspace/{name}", text=text, purpose=_PURPOSES[name])


def _write_new(home: Home, file: NewFile) -> None:
    """Write a file whole or not at all, open to its owner only; one that appeared meanwhile is
    left as it is."""
    path = home.root / file.name
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "x", encoding="utf-8", opener=_closed_to_others) as stream:
            stream.write(file.text)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); what was written before it is kept. "
            "Make room or mend the permissions, then run `teaagentd init`"
        ) from None


def _closed_to_others(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
