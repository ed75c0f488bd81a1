"""The daemon that most tests of the API talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.rig import Rig, serving


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A daemon that answers everything with `an answer`."""
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def idle(tmp_path: Path) -> AsyncIterator[Rig]:
    """A daemon that accepts messages and never gets to answering them."""
    async with serving(tmp_path, work=False) as running:
        yield running
