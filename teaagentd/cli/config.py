"""`teaagentd config`: look the configuration over, or show what is in force."""

from __future__ import annotations

import click

from teaagentd.cli.console import put, say
from teaagentd.cli.options import current_home, home_option
from teaagentd.config.load import Loaded, load_settings
from teaagentd.config.text import show
from teaagentd.plugins import check_installed


@click.group()
@home_option
def config() -> None:
    """Check or show the configuration."""


@config.command()
@home_option
def check() -> None:
    """Say whether the configuration can be used: exit code 0, or 78 and what is wrong."""
    home = current_home()
    loaded = load_settings(home)
    _warn(loaded)
    settings = loaded.settings
    check_installed(
        provider=settings.provider.type or "local",
        tools=settings.tools.enabled,
        channels=settings.channels,
    )
    if home.config_file.exists():
        put(f"{home.config_file} can be used.")
    else:
        put(f"{home.config_file} does not exist; the defaults are in force.")


@config.command(name="show")
@home_option
def show_() -> None:
    """Print what is in force, each key with where it was set; secrets are masked."""
    loaded = load_settings(current_home())
    _warn(loaded)
    put(show(loaded))


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if loaded.choice is not None:
        say(f"No provider is configured. {loaded.choice.reason}")
