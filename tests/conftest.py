"""What every test gets: the asyncio backend, and an event loop that must never be blocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def unblocked_loop() -> Iterator[BlockBuster]:
    """A blocking call on the event loop's thread, from our own code, fails the test."""
    with blockbuster_ctx("teaagentd") as blocker:
        yield blocker
