"""A real store in a real file, and the clock that it reads."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from teaagentd.store import Store
from tests.store.disk import mounted
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 2 MB, or on the one we have where we may not mount."""
    folder = tmp_path / "small"
    small = mounted(folder)
    yield folder
    if small:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
