"""The log of each test of a run, kept instead of printed: formatting a traceback reads files."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as entries:
        yield entries
