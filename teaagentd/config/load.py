"""Loading: the sources in, valid settings out, or one line for each fault."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from teaagentd.config.choice import Choice, choose
from teaagentd.config.settings import ModelSection, Settings
from teaagentd.config.source import (
    ANY,
    ENV_PREFIX,
    Origin,
    Tree,
    interpolated,
    is_secret_name,
    layered,
    open_to_others,
    read_secret_files,
    read_toml,
    unknown_keys,
    variable_name,
)
from teaagentd.errors import ConfigError
from teaagentd.home import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Settings, what an operator should hear about them, and where each value came from."""

    settings: Settings
    warnings: tuple[str, ...]
    origins: Mapping[str, Origin]
    """By dotted key; a key that is not in it has its default."""
    choice: Choice | None
    """The provider that was picked, if the operator named none."""
    file: Path
    """Where a key stands that no variable set, also when there is no such file."""

    def place(self, key: str) -> str:
        """Where `key` was set, or would be: the file, or the variable."""
        origin = self.origins.get(key)
        return str(self.file) if origin is None else origin.place

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Around what uses the settings: a `ConfigError` that names a key says where it was set."""
        try:
            yield
        except ConfigError as error:
            if error.key is None:
                raise
            raise ConfigError(f"{self.place(error.key)}: {error}") from error


def load_settings(home: Home, file: Tree | None = None) -> Loaded:
    """The settings of `home`, with `file` in place of what its file holds. A missing or empty file
    is all defaults. Raises `ConfigError`."""
    path = home.config_file
    if file is None:
        file = read_toml(path)
    environment, warnings = _environment()
    merged, origins = layered(file, environment, path)
    refused, unknown = unknown_keys(merged, _known(Settings), origins, path)
    if refused:
        raise ConfigError("\n".join(refused))
    warnings += unknown
    if file:
        warnings += open_to_others(path)
    choice = _complete_provider(merged, path)
    warnings += read_secret_files(merged, home.root, origins, path)
    try:
        settings = Settings.model_validate({**merged, "home": home.root})
    except ValidationError as error:
        raise ConfigError(_explain(error, merged, origins, path)) from None
    if strangers := [one for one in settings.provider.fallbacks if one not in settings.providers]:
        origin = origins.get("provider.fallbacks")
        place = origin.place if origin else str(path)
        raise ConfigError(
            f"{place}: provider.fallbacks names {strangers[0]!r}, and there is no table "
            f"[providers.{strangers[0]}]; write one, or take the name out"
        )
    return Loaded(
        settings=settings, warnings=tuple(warnings), origins=origins, choice=choice, file=path
    )


_READ_ELSEWHERE = frozenset({"HOME", "FAILPOINT", "SOAK", "CRASH_SEED"})
"""What follows the prefix in variables that name no section: the folder, and those of the tests."""


def _environment() -> tuple[Tree, list[str]]:
    """What the `TEAAGENTD_<SECTION>__<KEY>` variables say, and those that name no section."""
    try:
        values = EnvSettingsSource(Settings)()
    except SettingsError as error:
        field = str(error).partition('"')[2].partition('"')[0]
        raise ConfigError(_no_json(field)) from None
    values.pop("home", None)
    sections = {name.upper() for name in Settings.model_fields}
    sections |= _READ_ELSEWHERE
    unknown = [
        f"{name}: no section has this name; the variable is ignored"
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX)
        and name.removeprefix(ENV_PREFIX).partition("__")[0].upper() not in sections
    ]
    return values, unknown


def _no_json(section: str) -> str:
    """What to say of the variable for `section`, or for a list in it, that is no JSON."""
    whole = variable_name(section)
    model = Settings.model_fields[section].annotation
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    for key, field in fields.items():
        name = variable_name(f"{section}.{key}")
        if get_origin(field.annotation) is tuple and name in os.environ and whole not in os.environ:
            return f'{name}: is no valid JSON; a list is written like ["one", "two"]'
    return (
        f"{whole}: is no valid JSON; set the keys one by one, like "
        f"{variable_name('agent.max_iterations')}=20"
    )


def unknown(names: Sequence[str], path: Path) -> str | None:
    """What is said of a key in `path` that nobody reads; None for one that somebody does."""
    tree: object = None
    for name in reversed(names):
        tree = {name: tree}
    assert isinstance(tree, dict)
    refused, warned = unknown_keys(tree, _known(Settings), {}, path)
    return next(iter((*refused, *warned)), None)


def _known(model: type[BaseModel]) -> Tree:
    """The keys that are known, as a tree: a table is a tree, a value None."""
    tree: Tree = {}
    for name, field in model.model_fields.items():
        if name == "home":
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            tree[name] = _known(kind)
        elif name == "providers":
            tree[name] = {ANY: _known(ModelSection)}
        else:
            tree[name] = None
    return tree


def _complete_provider(values: Tree, path: Path) -> Choice | None:
    """Name the provider's type where the operator left it out. Returns the choice, if it was
    one: an address or a `.gguf` file leaves none."""
    others = values.get("providers")
    for name, table in others.items() if isinstance(others, dict) else ():
        if isinstance(table, dict) and not _named(table, f"providers.{name}", path):
            raise ConfigError(
                f"{path}: providers.{name}.type is not set; say which provider it is, like "
                'type = "openai"'
            )
    provider = values.setdefault("provider", {})
    if not isinstance(provider, dict) or _named(provider, "provider", path):
        return None
    choice = choose(os.environ)
    for key, value in choice.values.items():
        provider[key] = interpolated(value, f"provider.{key}", str(path))
    return choice


def _named(provider: Tree, place: str, path: Path) -> bool:
    """Whether the table says which provider it is: by its type, or by what leaves no choice."""
    model = provider.get("model")
    if provider.get("type") is not None:
        return True
    if provider.get("base_url") is not None:
        provider["type"] = "openai"
    elif isinstance(model, str) and model.endswith(".gguf"):
        provider["type"] = "local"
    elif given := [key for key in _NEED_A_TYPE if key in provider]:
        raise ConfigError(
            f"{path}: {place}.{given[0]} is set but {place}.type is not; say which provider it "
            'is for, like type = "openai"'
        )
    else:
        return False
    return True


_NEED_A_TYPE = ("api_key", "api_keys", "api_key_file", "model")


def _explain(
    error: ValidationError, values: Tree, origins: Mapping[str, Origin], path: Path
) -> str:
    """One line for each fault: where it was set, what it may be. Never the value of a secret."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        origin = origins.get(key)
        place = origin.place if origin else str(path)
        lines.append(f"{place}: {key} {_words(fault['type'], fault['msg'])}{_given(key, values)}")
    return "\n".join(lines)


_WORDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "string_type": "must be a text in quotes",
    "string_pattern_mismatch": "must begin with http:// or https://",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "path_type": "must be a path in quotes",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


def _words(kind: str, message: str) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _given(key: str, values: Tree) -> str:
    """The refused value, where it can be shown."""
    value: object = values
    for part in key.split("."):
        if not isinstance(value, Mapping) or is_secret_name(part) or part == "channels":
            return ""
        value = value.get(part)
    if isinstance(value, Mapping | list) or value is None:
        return ""
    return f", not {value!r}"
