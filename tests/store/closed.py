"""Folders that a process may not write to, also when the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DROPPED = "-dac_override,-dac_read_search"
ROOT = Path(__file__).parents[2]


@contextmanager
def closed_to_us(template: Path, *, readable: bool) -> Iterator[tuple[Path, Callable[..., str]]]:
    """A copy of the folder `template` that is closed for writing (and reading, unless
    `readable`), and a way to run a script as a process that this binds: one without the right
    of root to pass over modes."""
    scratch = Path(tempfile.mkdtemp())
    try:
        scratch.chmod(0o755)
        folder = scratch / "home"
        shutil.copytree(template, folder)
        for file in folder.rglob("*"):
            file.chmod((0o555 if file.is_dir() else 0o444) if readable else 0)
        folder.chmod(0o555 if readable else 0)

        def run(script: str, *arguments: str) -> str:
            command = [sys.executable, "-c", script, *arguments]
            if os.geteuid() == 0:
                command = [
                    "setpriv",
                    f"--bounding-set={DROPPED}",
                    f"--inh-caps={DROPPED}",
                    *command,
                ]
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=30
            )
            return done.stdout

        yield folder, run
    finally:
        folder.chmod(0o755)
        shutil.rmtree(scratch, ignore_errors=True)
