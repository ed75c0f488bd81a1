"""What every test gets: the asyncio backend, and an event loop that must never be blocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def unblocked_loop() -> Iterator[BlockBuster]:
    """A blocking call on the event loop's thread, from our own code, fails the test."""
    with blockbuster_ctx("teaagentd") as blocker:
        yield blocker


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> None:
    """Tracebacks without a look at source files, which would block the event loop."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
