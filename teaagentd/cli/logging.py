"""Logging as the settings in force want it, secrets of earlier settings masked too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from teaagentd.config import Settings
from teaagentd.logs import configure_logging


def keep_logging(file: Path | None = None) -> Callable[[Settings], None]:
    """What is to be called with each settings that come in force: lines go to standard error, or
    to `file`."""
    known: set[str] = set()

    def relog(settings: Settings) -> None:
        known.update(settings.secrets())
        configure_logging(
            level=settings.logging.level,
            form=settings.logging.format,
            secrets=known,
            file=file,
        )

    return relog
