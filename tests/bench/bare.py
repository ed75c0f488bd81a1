"""The measure: bare streaming calls through the SDK's generic `post`, and nothing around them.

    python -m tests.bench.bare URL BODY [--calls 100] [--at-once 1] [--warm-up 5]

BODY is a file with the JSON of one request. Prints one JSON object: elapsed_s, cpu_ms for one
call (of this process), and the milliseconds of each call from its start to its last chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import openai
import orjson
from openai import AsyncOpenAI


async def call(client: AsyncOpenAI, body: dict[str, object]) -> float:
    """One streamed answer, read to its end; milliseconds."""
    started = time.perf_counter()
    stream = await client.post(
        "/chat/completions",
        body=body,
        # Plain JSON: typed chunks cost as much again, and the daemon's adapter builds none.
        cast_to=object,
        stream=True,
        stream_cls=openai.AsyncStream[object],
    )
    text = ""
    async for chunk in stream:
        if isinstance(chunk, dict) and chunk.get("choices"):
            text += chunk["choices"][0]["delta"].get("content") or ""
    assert text
    return (time.perf_counter() - started) * 1000


async def measure(given: argparse.Namespace) -> dict[str, object]:
    body = orjson.loads(Path(given.body).read_bytes())
    latencies: list[float] = []
    async with AsyncOpenAI(base_url=given.url, api_key="none", max_retries=0) as client:
        for _ in range(given.warm_up):
            await call(client, body)
        left = given.calls

        async def worker() -> None:
            nonlocal left
            while left:
                left -= 1
                latencies.append(await call(client, body))

        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(given.at_once)))
        cpu_s, elapsed_s = time.process_time() - cpu, time.perf_counter() - started
    return {
        "elapsed_s": elapsed_s,
        "cpu_ms": cpu_s * 1000 / given.calls,
        "latencies_ms": latencies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.bare", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("body")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
