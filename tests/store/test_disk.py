"""Disks that are full, failing or read-only: nothing half-kept, said in words, and no restart."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from teaagentd.errors import StoreUnavailable
from teaagentd.store import Store
from tests.store.closed import ROOT, closed_to_us
from tests.store.disk import LARGE, limit_pages, refused, survive
from tests.store.steps import KEY, ManualClock, said

pytestmark = pytest.mark.anyio


async def test_a_database_that_may_not_grow_refuses_and_goes_on(path: Path) -> None:
    store = await Store.open(path, clock=ManualClock())
    await store.accept(said("before"))
    await limit_pages(store, 2)
    assert "is full" in str(await refused(store, LARGE))
    assert [row.message.content for row in await store.pending_rows(KEY)] == ["before"]
    await limit_pages(store, 2**30)
    await store.accept(said(LARGE))
    await store.aclose()


async def test_a_full_disk_undoes_only_what_does_not_fit(path: Path) -> None:
    """SQLite undoes the whole batch; each is then run again alone."""
    store = await Store.open(path, clock=ManualClock(), max_pending=100)
    await store.accept(said("before"))
    await limit_pages(store, 8)
    refusals: list[str] = []

    async def accept(content: str, chat_id: str) -> None:
        try:
            await store.accept(said(content, chat_id=chat_id))
        except StoreUnavailable as error:
            refusals.append(str(error))

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(accept, LARGE if number % 2 else "small", f"c{number}")
    assert len(refusals) == 5
    kept = [pending.key.chat_id for pending in await store.pending_keys()]
    assert kept == ["k", "c0", "c2", "c4", "c6", "c8"]
    await store.aclose()


async def test_a_full_disk_is_survived(small_disk: Path) -> None:
    path = small_disk / "state.db"
    store = await Store.open(path, clock=ManualClock())
    filler = small_disk / "filler"

    def fill() -> None:
        if not small_disk.is_mount():
            return
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    if small_disk.is_mount():
        await survive(store, path, fill, filler.unlink)
    else:
        await limit_pages(store, 2)
        await refused(store, LARGE)
    await store.aclose()


async def test_a_failing_disk_is_survived(path: Path) -> None:
    done = await anyio.run_process(
        [sys.executable, "-m", "tests.store.disk", str(path)], cwd=ROOT, stderr=None, check=False
    )
    assert (done.returncode, done.stdout.decode().splitlines()[-1:]) == (0, ["survived"])


OPEN = """
import asyncio, sys
from pathlib import Path
from teaagentd.abc import SystemClock
from teaagentd.errors import StoreError
from teaagentd.store import Store

async def main():
    try:
        store = await Store.open(Path(sys.argv[1]), clock=SystemClock())
    except StoreError as error:
        print(type(error).__name__, error)
    else:
        print("opened")
        await store.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("kept", [True, False], ids=["with a file", "empty"])
async def test_a_closed_home_is_refused_with_the_reason(
    tmp_path: Path, readable: bool, kept: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    before = b""
    if kept:
        store = await Store.open(home / "state.db", clock=ManualClock())
        await store.accept(said("hi"))
        await store.aclose()
        before = (home / "state.db").read_bytes()
    with closed_to_us(home, readable=readable) as (folder, run):
        line = run(OPEN, str(folder / "state.db")).splitlines()[-1]
        assert line.startswith("StoreUnavailable "), line
        assert "--home" in line
        if kept:
            assert (folder / "state.db").read_bytes() == before


async def test_a_file_that_lost_its_mode_is_ours_again(path: Path) -> None:
    store = await Store.open(path, clock=ManualClock())
    await store.accept(said("hi"))
    await store.aclose()
    path.chmod(0o400)
    store = await Store.open(path, clock=ManualClock())
    await store.accept(said("again"))
    await store.aclose()
