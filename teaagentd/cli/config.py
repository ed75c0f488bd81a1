"""`teaagentd config`: look the configuration over, show what is in force, or change a key."""

from __future__ import annotations

import click

from teaagentd.cli.console import put, say
from teaagentd.cli.options import current_home, home_option
from teaagentd.config.edit import set_key
from teaagentd.config.load import Loaded, load_settings
from teaagentd.config.settings import ModelSection
from teaagentd.config.source import is_secret_name
from teaagentd.config.text import MASK, show, toml_value
from teaagentd.errors import ConfigError, ModelMissing
from teaagentd.plugins import check_installed
from teaagentd.providers import model_file


@click.group()
@home_option
def config() -> None:
    """Check, show or change the configuration."""


@config.command()
@home_option
def check() -> None:
    """Say whether the configuration can be used: exit code 0, or 78 and what is wrong.

    The daemon starts all the same with a channel, a model file or a key that is missing: it
    answers with what is wrong, and does the rest.
    """
    home = current_home()
    loaded = load_settings(home)
    _warn(loaded)
    check_settings(loaded)
    if home.config_file.exists():
        put(f"{home.config_file} can be used.")
    else:
        put(f"{home.config_file} does not exist; the defaults are in force.")


def check_settings(loaded: Loaded) -> None:
    """Raises `ConfigError` for what is valid and can still not be used: a plugin that is not
    installed, a model that is not there."""
    settings = loaded.settings
    with loaded.placed():
        check_installed(settings)
        for place, section in settings.models():
            _check_model(section, place)


_VENDORS = {"openai": "OpenAI", "anthropic": "Anthropic"}


def _check_model(provider: ModelSection, place: str) -> None:
    """Raises `ConfigError` for a model that can certainly not be used."""
    if provider.type == "local":
        try:
            model_file.find(provider.model)
        except ModelMissing as error:
            raise ConfigError(f"{place}.model: {error}", key=f"{place}.model") from None
    elif vendor := _VENDORS.get(provider.type or ""):
        if provider.base_url is not None or provider.all_keys():
            return
        raise ConfigError(
            f"{place}.api_key: is missing; {vendor} answers nobody without one. Set it, or "
            f"{place}.base_url for another server",
            key=f"{place}.api_key",
        )


@config.command(name="show")
@home_option
def show_() -> None:
    """Print what is in force, each key with where it was set; secrets are masked."""
    loaded = load_settings(current_home())
    _warn(loaded)
    put(show(loaded))


@config.command(name="set", context_settings={"ignore_unknown_options": True})
@home_option
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Set KEY, like agent.name, to VALUE in config.toml.

    VALUE is written as in the file, a text also without quotes. The whole is looked over first:
    what cannot be used is not written. Comments, ${NAME} and all else in the file stay. A running
    daemon takes it up within some 15 seconds, or at once at SIGHUP.
    """
    home = current_home()
    change = set_key(home, key, value)
    _warn(change.loaded)
    for warning in change.warnings:
        say(f"warning: {warning}")
    try:
        check_settings(change.loaded)
    except ConfigError as error:
        say(f"warning: {error}")
    shown = MASK if is_secret_name(key.rpartition(".")[2]) else toml_value(change.value)
    put(f"{key} = {shown} is in {home.config_file}.")


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if loaded.choice is not None:
        say(f"No provider is configured. {loaded.choice.reason}")
