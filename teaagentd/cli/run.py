"""`teaagentd run`: this process is the daemon."""

from __future__ import annotations

import click
import structlog

from teaagentd.cli.console import say
from teaagentd.cli.first_start import first_start
from teaagentd.cli.logging import keep_logging
from teaagentd.cli.options import current_home, home_option, unwrapped
from teaagentd.config import load_settings
from teaagentd.daemon import run_daemon

log = structlog.get_logger()


@click.command()
@home_option
def run() -> int:
    """Be the daemon, until told to stop.

    The first SIGTERM or SIGINT finishes what is being said and sent, the second ends at once, still
    losing nothing that was accepted. Exit code 0: it ended as asked,
    what could not be finished in time goes on at the next start; 3: the end was forced; 78: the
    configuration cannot be used.
    """
    home = current_home()
    first_start(home, say)
    loaded = load_settings(home)
    relog = keep_logging()
    relog(loaded.settings)
    for warning in loaded.warnings:
        log.warning("configuration", problem=warning)
    if loaded.choice is not None:
        log.warning("provider_chosen", reason=loaded.choice.reason)
    with loaded.placed(), unwrapped():
        return run_daemon(loaded.settings, relog)
