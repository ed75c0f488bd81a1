"""A real store in a real file, and the clock that it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from teaagentd.store import Store
from tests.store.steps import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state.db"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    store = await Store.open(path, clock=clock, max_pending=5)
    yield store
    await store.aclose()
