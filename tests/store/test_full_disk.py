"""A disk that is full at each commit: nothing of it is kept, it is said, and it goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from teaagentd.errors import StoreUnavailable
from teaagentd.store import Store
from teaagentd.store.commits import COMMITS
from tests.store.life import TABLES, dump, live, live_in
from tests.store.steps import ManualClock

T = TypeVar("T")


class FullDisk:
    """Has the disk full as each operation commits for the first time, and mends it then."""

    def __init__(self, store: Store, path: Path) -> None:
        self.failed: dict[str, str] = {}
        self._path = path
        self._filler = path.parent / "filler"
        self._small = path.parent.is_mount()
        self._write = store._database.write

    async def write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        before = await asyncio.to_thread(dump, self._path)
        if self._small:
            await asyncio.to_thread(self._fill)

        def limited(connection: sqlite3.Connection) -> T:
            done = run(connection)
            if not self._small:
                raise sqlite3.OperationalError("database or disk is full")
            return done

        try:
            done = await self._write(name, limited)
        except StoreUnavailable as error:
            self.failed[name] = str(error)
        else:
            # It changed nothing, and so had nothing to write.
            assert await asyncio.to_thread(dump, self._path) == before
            return done
        finally:
            await asyncio.to_thread(self._filler.unlink, missing_ok=True)
        assert await asyncio.to_thread(dump, self._path) == before
        return await self._write(name, run)

    def _fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            for size in (65_536, 4096):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue


def test_a_disk_that_is_full_at_any_commit_costs_that_one_alone(
    small_disk: Path, tmp_path: Path
) -> None:
    whole, path = tmp_path / "whole.db", small_disk / "state.db"
    asyncio.run(live_in(whole, None))

    async def fill_at_each() -> dict[str, str]:
        store = await Store.open(path, clock=ManualClock())
        disk = FullDisk(store, path)
        store._write = store._database.write = disk.write  # type: ignore[method-assign]
        await live(store)
        await store.aclose()
        return disk.failed

    failed = asyncio.run(fill_at_each())
    assert set(failed) == set(COMMITS)
    for name, problem in failed.items():
        assert "full" in problem
        assert "was not kept" in problem, name
    for table, rows, expected in zip(TABLES, dump(path), dump(whole), strict=True):
        assert rows == expected, table
