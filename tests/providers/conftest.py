"""An adapter of each kind, opened for a test and closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from teaagentd.abc import SystemClock
from teaagentd.providers.exchange import Timeouts
from teaagentd.providers.openai import OpenAIAdapter
from tests.strict_server import StrictServer

KEY = "sk-canary-5f2b9c77aa01"

Connect = Callable[..., OpenAIAdapter]


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer(chunks=4) as server:
        yield server


@pytest.fixture
async def connect(server: StrictServer) -> AsyncIterator[Connect]:
    """Makes adapters for the server; `first_token_s` and `idle_s` are its patience."""
    async with AsyncExitStack() as opened:

        def make(
            *, base_url: str | None = None, first_token_s: float = 30.0, idle_s: float = 30.0
        ) -> OpenAIAdapter:
            adapter = OpenAIAdapter(
                name="acme",
                model="m",
                base_url=base_url or server.url,
                api_key=KEY,
                clock=SystemClock(),
                timeouts=Timeouts(first_token_s=first_token_s, idle_s=idle_s),
            )
            opened.push_async_callback(adapter.aclose)
            return adapter

        yield make


@pytest.fixture
def adapter(connect: Connect) -> OpenAIAdapter:
    return connect()
