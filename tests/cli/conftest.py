"""What the command line's tests get: a home that does not exist yet, a model that knows what to
say."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strict_server import ServerProcess


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, as a socket's path has to be."""
    folder = Path(tempfile.mkdtemp(prefix="tea-"))
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A model server that answers words, slowly where asked; anything else it echoes."""
    slow = {"match": "slow", "times": 0, "text": "Slow answer.", "latency_ms": 1000}
    words = {"hello": "Hello to you.", "one": "Answer 1.", "two": "Answer 2.", "three": "Answer 3."}
    answers = [{"match": word, "times": 0, "text": text} for word, text in words.items()]
    with ServerProcess([slow, *answers]) as made:
        yield made
