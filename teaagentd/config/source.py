"""Where values come from: the file, the environment over it, `${NAME}` and `*_file` within it."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from teaagentd.errors import ConfigError

ENV_PREFIX = "TEAAGENTD_"

Tree: TypeAlias = dict[str, object]
"""Nested tables, as TOML gives them."""

GUARDING = frozenset(
    {"permission_mode", "allow_from", "api_key", "api_keys", "api_key_file", "base_url"}
)
"""Keys that decide who may do what, or where a secret goes. Misspelt, they are refused: a warning
would leave the door as wide as the default."""

ANY = "*"
"""In a tree of known keys: a table of any name."""
_SECRET = re.compile(r"(?:^|_)(?:token|secret|password|passphrase|credentials?|keys?)$")


def is_secret_name(key: str) -> bool:
    """Whether the value of a key with this name is shown to nobody."""
    return _SECRET.search(key.lower()) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where one value came from."""

    kind: Literal["file", "environment", "secret file"]
    place: str
    """The file's path, or the variable's name."""
    placeholder: str | None = None
    """The text as the file has it, if `${…}` was filled in."""


def variable_name(key: str) -> str:
    """The variable that overrides the dotted `key`."""
    return ENV_PREFIX + key.replace(".", "__").upper()


def read_toml(path: Path) -> Tree:
    """The tables of a file; a missing one has none. Raises `ConfigError` with line and column."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except IsADirectoryError:
        raise ConfigError(
            f"{path}: is a folder, not a file; move it away or put the settings in its place"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); nothing was changed"
        ) from None
    return decode_toml(data, path)


def decode_toml(data: bytes, path: Path) -> Tree:
    """The same for what was read of it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (at byte {error.start})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: is not valid TOML: {_position(error, text)}; nothing was changed"
        ) from None


def _position(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The parser's message, which names line and column but for the end of the file."""
    message = str(error)
    if "at end of document" not in message:
        return message
    lines = text.split("\n")
    return message.replace(
        "at end of document", f"at the file's end, line {len(lines)}, column {len(lines[-1]) + 1}"
    )


def layered(file: Tree, environment: Tree, path: Path) -> tuple[Tree, dict[str, Origin]]:
    """`environment` laid over `file`, with the origin of every value by its dotted key.

    `${NAME}` is filled in in what is left of the file: what a variable overrides is not looked at.
    """
    origins: dict[str, Origin] = {}
    return _merge(file, environment, "", str(path), origins), origins


def _merge(
    file: Mapping[str, object],
    environment: Mapping[str, object],
    prefix: str,
    path: str,
    origins: dict[str, Origin],
) -> Tree:
    merged: Tree = {}
    for name in [*file, *(name for name in environment if name not in file)]:
        key = f"{prefix}{name}"
        lower, upper = file.get(name), environment.get(name)
        if isinstance(lower, Mapping) and (name not in environment or isinstance(upper, Mapping)):
            above = upper if isinstance(upper, Mapping) else {}
            merged[name] = _merge(lower, above, f"{key}.", path, origins)
        elif name not in environment:
            merged[name] = interpolated(lower, key, path)
            text = lower if isinstance(lower, str) and merged[name] != lower else None
            origins[key] = Origin(kind="file", place=path, placeholder=text)
        elif isinstance(upper, Mapping):
            merged[name] = _merge({}, upper, f"{key}.", path, origins)
        else:
            merged[name] = upper
            origins[key] = Origin(kind="environment", place=variable_name(key))
    return merged


_PLACEHOLDER = re.compile(
    r"\$\$(?=\{)|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<or>:-(?P<default>[^}]*))?\})?"
)


def interpolated(value: object, key: str, path: str) -> object:
    """`value` with each `${NAME}` taken from the environment, in nested lists and tables too.

    `${NAME:-text}` falls back on `text`; `$${` stands for `${`; any other `$` for itself.
    Raises `ConfigError` naming key and variable when one is unset or empty.
    """
    if isinstance(value, list):
        return [interpolated(item, f"{key}[{place}]", path) for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: interpolated(item, f"{key}.{name}", path) for name, item in value.items()}
    if not isinstance(value, str) or "${" not in value:
        return value

    def fill(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match["name"]
        if name is None:
            raise ConfigError(
                f"{path}: {key} has a ${{ that begins no ${{NAME}}; write $${{ to mean ${{ itself"
            )
        found = os.environ.get(name)
        if found:
            return found
        if match["or"]:
            return match["default"] or ""
        state = "is set but empty" if found is not None else "is not set"
        raise ConfigError(
            f"{path}: {key} takes its value from the environment variable {name}, which {state}; "
            f"set it, or write ${{{name}:-default}}"
        )

    return _PLACEHOLDER.sub(fill, value)


def unknown_keys(
    values: Tree, known: Tree, origins: Mapping[str, Origin], path: Path
) -> tuple[list[str], list[str]]:
    """What is refused and what is warned of: keys that no one reads, with the nearest one."""
    refused: list[str] = []
    warnings: list[str] = []
    for key, siblings in _unknown(values, known, ""):
        name = key.rpartition(".")[2]
        near = _nearest(name, siblings)
        origin = origins.get(key)
        place = origin.place if origin else str(path)
        what = f"{place}: {key} is no known setting"
        if near in GUARDING:
            refused.append(
                f"{what}; {key[: -len(name)]}{near} was likely meant, and that one is not left "
                "to chance. Correct it or take it out"
            )
        elif near:
            warnings.append(f"{what} and is ignored; did you mean {key[: -len(name)]}{near}?")
        else:
            warnings.append(f"{what} and is ignored")
    return refused, warnings


def _unknown(values: Mapping[str, object], known: Tree, prefix: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for name, value in values.items():
        below = known.get(name, known.get(ANY))
        if name not in known and ANY not in known:
            found.append((f"{prefix}{name}", [*known, *GUARDING]))
        elif name == "channels" and not prefix:
            found += _misspelt_guards(value)
        elif isinstance(value, Mapping) and isinstance(below, dict):
            found += _unknown(value, below, f"{prefix}{name}.")
    return found


def _misspelt_guards(channels: object) -> list[tuple[str, list[str]]]:
    """Options are the channel's own affair, but for a near miss of a key that guards it."""
    found: list[tuple[str, list[str]]] = []
    for channel, options in channels.items() if isinstance(channels, Mapping) else ():
        for name in options if isinstance(options, Mapping) else ():
            if name not in GUARDING and _nearest(name, ["allow_from"]):
                found.append((f"channels.{channel}.{name}", ["allow_from"]))
    return found


def _nearest(name: str, candidates: list[str]) -> str | None:
    """The candidate that `name` was likely meant to be: letters alike, or nearly so."""
    plain = {candidate.replace("_", ""): candidate for candidate in candidates}
    folded = re.sub(r"[-_.\s]", "", name).lower()
    if folded in plain:
        return plain[folded]
    near = difflib.get_close_matches(folded, plain, n=1, cutoff=0.75)
    return plain[near[0]] if near else None


def read_secret_files(
    values: Tree, root: Path, origins: dict[str, Origin], path: Path
) -> list[str]:
    """Put the content of each `*_file` that holds a secret in its place. A relative path starts
    in the home. Returns warnings; raises `ConfigError`."""
    warnings: list[str] = []
    tables: list[tuple[str, object]] = [("provider", values.get("provider"))]
    for group in ("providers", "channels"):
        named = values.get(group)
        if isinstance(named, Mapping):
            tables += [(f"{group}.{name}", options) for name, options in named.items()]
    for prefix, table in tables:
        if not isinstance(table, dict):
            continue
        for name in [name for name in table if name.endswith("_file")]:
            target = name.removesuffix("_file")
            file_name = table[name]
            if not is_secret_name(target) or not isinstance(file_name, str):
                continue
            key = f"{prefix}.{name}"
            if target in table:
                raise ConfigError(
                    f"{path}: {key} and {prefix}.{target} are both set; take one of them out"
                )
            file = root / Path(file_name).expanduser()
            table[target] = _secret(file, key)
            origins[f"{prefix}.{target}"] = Origin(kind="secret file", place=str(file))
            warnings += open_to_others(file)
    return warnings


def _secret(file: Path, key: str) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{file}: cannot be read ({reason}); {key} names it") from None
    if not text:
        raise ConfigError(f"{file}: is empty; {key} names it as the file that holds the secret")
    return text


def open_to_others(file: Path) -> list[str]:
    """A warning if others on the machine may read `file`, else nothing."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return []
    if mode & (stat.S_IRWXG | stat.S_IRWXO) == 0:
        return []
    return [f"{file}: others on this machine may open it; close it with `chmod 600 {file}`"]
