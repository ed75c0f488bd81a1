"""The configuration as text: the commented example, and what is in force with secrets masked."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from teaagentd.config.load import Loaded
from teaagentd.config.settings import Settings
from teaagentd.config.source import Origin, is_secret_name, variable_name

MASK = "********"

_USER_INFO = re.compile(r"(://)[^/@\s]+@")

_OVERRIDE = f"{variable_name('agent.max_iterations')}=20"

_HEAD = f"""\
# Settings of teaagentd. Every key is optional; behind a # stands its default or an example.
# A variable overrides a key: {_OVERRIDE} is max_iterations in [agent].
# In a text, ${{NAME}} is taken from the environment, ${{NAME:-text}} falls back on text, and
# $${{ is ${{ itself. A running daemon takes up a saved change within some 15 seconds, or at SIGHUP,
# as a whole or not at all; `teaagentd config check` looks the file over.
"""

_PROVIDERS = """\
# [providers.NAME]
# One table for each provider that may stand in; it has the keys of [provider].
# type = "local"
"""

_CHANNELS = """\
# [channels.NAME]
# One table for each channel that is to run, whose kind is `type`, or NAME if that is not set.
# What else it takes is the channel's own; a secret may stand in a file named by KEY_file.
# type = "telegram"
# enabled = true
# Who may speak there, by the ids of the senders; unset, the channel decides.
# allow_from = ["12345"]
"""


def example(provider: Mapping[str, str] | None = None) -> str:
    """A file with every key, its meaning and its default, commented out; `provider` is set."""
    parts = [_HEAD]
    for name, field in Settings.model_fields.items():
        if name == "providers":
            parts.append(_PROVIDERS)
        elif name == "channels":
            parts.append(_CHANNELS)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            given = provider if name == "provider" and provider else {}
            parts.append(_example_section(name, field.annotation, given))
    return "\n".join(parts)


def _example_section(name: str, model: type[BaseModel], given: Mapping[str, str]) -> str:
    lines = [f"[{name}]", f"# {(model.__doc__ or '').strip()}"]
    for key, field in model.model_fields.items():
        lines.append("")
        lines += _comment(field.description or "")
        if key in given:
            lines.append(f"{key} = {toml_value(given[key])}")
        else:
            lines.append(f"# {key} = {toml_value(_sample(field))}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.split("\n"):
        yield from textwrap.wrap(
            paragraph, 98, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )


def _sample(field: FieldInfo) -> object:
    return field.default if field.default is not None else (field.examples or [""])[0]


def show(loaded: Loaded) -> str:
    """What is in force, as TOML, each key with its source. Secrets are masked; a text that was
    filled in from the environment is shown as the file has it."""
    lines: list[str] = []
    for name, value in loaded.settings:
        if isinstance(value, BaseModel):
            lines += _show_table(name, dict(value), loaded.origins)
        elif isinstance(value, Mapping):
            for one, options in value.items():
                lines += _show_table(f"{name}.{toml_key(one)}", dict(options), loaded.origins)
    return "\n".join(lines)


def _show_table(
    name: str, values: Mapping[str, object], origins: Mapping[str, Origin]
) -> list[str]:
    lines, tables = [f"[{name}]"], []
    for key, value in values.items():
        origin = origins.get(f"{name}.{key}")
        source = f"  # {origin.place}" if origin else ""
        if isinstance(value, Mapping):
            tables += _show_table(f"{name}.{toml_key(key)}", value, origins)
        elif value is None:
            lines.append(f"# {key} is not set")
        elif isinstance(value, SecretStr) or is_secret_name(key):
            lines.append(f"{toml_key(key)} = {toml_value(MASK)}{source}")
        else:
            text = origin.placeholder if origin and origin.placeholder else value
            shown = _USER_INFO.sub(rf"\1{MASK}@", text) if isinstance(text, str) else text
            lines.append(f"{toml_key(key)} = {toml_value(shown)}{source}")
    return [*lines, "", *tables]


def toml_key(key: str) -> str:
    """`key` as TOML writes it, in quotes where it must be."""
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else toml_value(key)


def toml_value(value: object) -> str:
    """`value` as TOML writes it. Raises `TypeError` for what TOML has no form for."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case Mapping():
            pairs = (f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"TOML has no form for {type(value).__name__}")
