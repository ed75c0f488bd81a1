"""Setting one key of `config.toml`: all else in it stays as it is, to the letter."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from teaagentd.config.load import Loaded, load_settings, unknown
from teaagentd.config.source import decode_toml, is_secret_name, variable_name
from teaagentd.errors import ConfigError
from teaagentd.home import Home

_BOM = "\ufeff"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A key that was set."""

    key: str
    value: object
    loaded: Loaded
    """The configuration with it."""
    warnings: tuple[str, ...]


def set_key(home: Home, key: str, given: str) -> Change:
    """Set `key`, written with dots, to `given`: a TOML value, or a text without its quotes.

    The whole is looked over with the change before anything is written; comments, placeholders,
    order and unknown keys stay. Raises `ConfigError`; the file is then as it was, byte for byte.
    """
    path = home.config_file
    names = _names(key)
    if (problem := unknown(names, path)) is not None:
        raise ConfigError(f"{problem}. Nothing was changed")
    before = _text(path)
    text, loaded = _changed(home, before, names, given)
    value = _at(tomllib.loads(text.removeprefix(_BOM)), names)
    warnings = []
    if is_secret_name(names[-1]) and isinstance(value, str) and "${" not in value:
        warnings.append(
            f"{key} now stands readable in {path}, and this command perhaps in your shell's "
            f"history; {key}_file or ${{NAME}} keeps it out of both"
        )
    if variable_name(key) in os.environ:
        warnings.append(f"{variable_name(key)} is set, and overrides it")
    if text != before:
        _replace(path.resolve(), text)
    return Change(key=key, value=value, loaded=loaded, warnings=tuple(warnings))


def _names(key: str) -> list[str]:
    """The parts of a key, by the rules of TOML."""
    try:
        found: object = tomllib.loads(f"{key} = 0") if "\n" not in key else {}
    except tomllib.TOMLDecodeError:
        found = {}
    names = []
    while isinstance(found, Mapping) and len(found) == 1:
        ((name, found),) = found.items()
        names.append(name)
    if len(names) < 2:
        raise ConfigError(
            f"{key!r} names no setting; write it like agent.name. Nothing was changed", key=key
        )
    return names


def _text(path: Path) -> str:
    """The file as it is. Raises `ConfigError` for one that cannot be read as TOML."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; `teaagentd init` writes one") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); nothing was changed"
        ) from None
    decode_toml(data, path)
    return data.decode()


def _changed(home: Home, before: str, names: list[str], given: str) -> tuple[str, Loaded]:
    """The text with the change, and what it comes to. Raises `ConfigError`."""
    problem: ConfigError | None = None
    for value in _values(given):
        text = _edited(before, names, value, home.config_file)
        try:
            return text, load_settings(home, tomllib.loads(text.removeprefix(_BOM)))
        except ConfigError as error:
            problem = problem or error
    assert problem is not None
    raise ConfigError(f"{problem}\nNothing was changed") from problem


def _values(given: str) -> Iterator[object]:
    """What `given` may mean, the likeliest first."""
    with suppress(tomllib.TOMLDecodeError):
        if "\n" not in given:
            yield tomllib.loads(f"value = {given}")["value"]
    yield given


def _edited(before: str, names: list[str], value: object, path: Path) -> str:
    # Imported here, as only this verb needs it.
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    mark = _BOM if before.startswith(_BOM) else ""
    wanted = tomllib.loads(before.removeprefix(_BOM))
    try:
        _put(wanted, names, value)
        document = tomlkit.parse(before.removeprefix(_BOM))
        _put(document, names, value)
        text = tomlkit.dumps(document)
        same = tomllib.loads(text) == wanted
    except (TOMLKitError, TypeError, ValueError):
        same = False
    if not same:
        raise ConfigError(
            f"{path}: {'.'.join(names)} cannot be set without touching what stands around it; "
            "please edit it by hand. Nothing was changed"
        )
    return mark + text


def _put(tables: object, names: list[str], value: object) -> None:
    """Set it, with the tables above it. Raises `TypeError` where no table is."""
    for name in names[:-1]:
        if not isinstance(tables, dict):
            raise TypeError(name)
        if name not in tables:
            tables[name] = {}
        tables = tables[name]
    if not isinstance(tables, dict):
        raise TypeError(names[-1])
    tables[names[-1]] = value


def _at(tables: object, names: list[str]) -> object:
    for name in names:
        assert isinstance(tables, Mapping)
        tables = tables[name]
    return tables


def _replace(path: Path, text: str) -> None:
    """As a whole or not at all, with the mode that the file has. Raises `ConfigError`."""
    draft: str | None = None
    try:
        mode = path.stat().st_mode & 0o777
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".config-", suffix=".toml")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(draft, path)
        draft = None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); nothing was changed"
        ) from None
    finally:
        if draft is not None:
            with suppress(OSError):
                os.unlink(draft)
