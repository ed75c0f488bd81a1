"""The lock on a home: held by a living process, free the moment that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from teaagentd.errors import HomeLocked, StoreUnavailable
from teaagentd.store import HomeLock
from teaagentd.store.lock import is_held
from tests.store.closed import closed_to_us

HOLDER = """
import sys
from pathlib import Path
from teaagentd.store.lock import HomeLock
with HomeLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_kept_out_and_told_by_whom(tmp_path: Path) -> None:
    # anthropics/claude-plugins-official#1360
    with holder(tmp_path) as process:
        assert is_held(tmp_path)
        with pytest.raises(HomeLocked) as caught:
            HomeLock(tmp_path).acquire()
        assert str(process.pid) in caught.value.holder
        assert str(tmp_path) in str(caught.value)
        assert process.poll() is None


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not is_held(tmp_path)
        with HomeLock(tmp_path):
            assert is_held(tmp_path)
        assert not is_held(tmp_path)


def test_a_number_in_the_file_keeps_nobody_out_and_is_never_signalled(tmp_path: Path) -> None:
    # NousResearch/hermes-agent#65176
    with subprocess.Popen(["sleep", "60"]) as stranger:
        file = tmp_path / "run" / "teaagentd.lock"
        file.parent.mkdir()
        file.write_text(f"process {stranger.pid} (since long ago)")
        with HomeLock(tmp_path):
            assert str(os.getpid()) in file.read_text()
        assert stranger.poll() is None
        stranger.kill()


def test_a_child_that_outlives_its_parent_does_not_keep_the_home(tmp_path: Path) -> None:
    with HomeLock(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with HomeLock(tmp_path):
            assert is_held(tmp_path)
    finally:
        child.kill()
        child.wait()


def test_two_homes_have_a_lock_each(tmp_path: Path) -> None:
    with HomeLock(tmp_path / "a"), HomeLock(tmp_path / "b"):
        assert is_held(tmp_path / "a")
        assert is_held(tmp_path / "b")


def test_a_removed_lock_file_is_not_a_second_lock(tmp_path: Path) -> None:
    """Whoever holds a file that is no longer there does not take part any more; the one that
    stands there now is held by exactly one process."""
    with HomeLock(tmp_path):
        (tmp_path / "run" / "teaagentd.lock").unlink()
        with HomeLock(tmp_path), pytest.raises(HomeLocked):
            HomeLock(tmp_path).acquire()


def test_releasing_twice_is_harmless(tmp_path: Path) -> None:
    lock = HomeLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()
    with HomeLock(tmp_path):
        pass


def test_a_read_only_home_says_so(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from teaagentd.errors import StoreUnavailable
from teaagentd.store.lock import HomeLock
try:
    HomeLock(Path(sys.argv[1])).acquire()
except StoreUnavailable as error:
    print(error)
"""
    with closed_to_us(tmp_path, readable=True) as (folder, run):
        said = run(script, str(folder))
        assert list(folder.iterdir()) == []
    assert "cannot lock this home" in said
    assert "--home" in said


def test_a_file_in_place_of_the_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(StoreUnavailable, match="Nothing was changed"):
        HomeLock(tmp_path).acquire()
