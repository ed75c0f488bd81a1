"""`teaagentd init`: what the first start would write."""

from __future__ import annotations

import click

from teaagentd.cli.console import say
from teaagentd.cli.first_start import write_missing
from teaagentd.cli.options import current_home, home_option


@click.command()
@home_option
def init() -> None:
    """Write the first configuration and workspace.

    What exists is never written over. `chat`, `ask` and `run` do the same when they find an empty
    home, and never again.
    """
    home = current_home()
    if not write_missing(home, say):
        say(f"{home.root} has all of its files already; nothing was changed.")
