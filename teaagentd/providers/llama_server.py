"""The process that serves one GGUF file with llama.cpp: a child of the daemon, run by its path.

Standard input brings one line of JSON, an `Order`, and is then held open by the parent for as
long as it wants the server: when it closes, by the parent's `kill -9` too, this process ends.
Standard output carries one line of JSON back, a `Served` or `{"error": …}`. Standard error is
the log. Nothing of the daemon is imported here.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import urllib.request
from typing import TypedDict


class Order(TypedDict):
    """What to serve, and how."""

    model: str
    """Path of a GGUF file."""
    alias: str
    """The model's name in answers."""
    key: str
    """The bearer key that every request must bring."""
    context: int
    """Tokens kept for all conversations together; none gets more than the model's own window."""
    slots: int
    """Answers that are worked on at once."""
    cache_mib: int
    """MiB of memory for the prompts of conversations that have no slot now."""
    threads: int


class Served(TypedDict):
    """Where the server listens, and what it serves."""

    port: int
    window: int
    """Tokens that one conversation may have."""
    parameters: int
    """The model's size."""


def main() -> None:
    report_to = os.dup(1)
    os.dup2(2, 1)  # llama.cpp may write to standard output: that goes to the log
    order: Order = json.loads(sys.stdin.buffer.readline())
    _end_with_parent()
    os.nice(5)
    try:
        server, answer = serve(order)
    except Exception as problem:
        # Whatever went wrong is the parent's to tell: it is the only reader there is.
        os.write(report_to, _line({"error": f"{type(problem).__name__}: {problem}"}))
        sys.exit(1)
    os.write(report_to, _line(answer))
    os.close(report_to)
    threading.Event().wait()
    del server  # it stops when it is collected


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _end_with_parent() -> None:
    """From now on, end at once when standard input closes. A thread waits for that; but while
    llama.cpp loads a model no thread of Python runs, so the kernel is asked to send SIGIO as
    well, which ends a process (on Linux; elsewhere it is ignored)."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _wait_for_the_end() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def serve(order: Order) -> tuple[object, Served]:
    """Load the model and listen; returns the server and what is told of it."""
    import xllamacpp  # here, so that a missing package is an answer like any other

    parameters = xllamacpp.CommonParams()
    parameters.model.path = order["model"]
    parameters.model_alias = {order["alias"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [order["key"]]
    parameters.ui = False
    parameters.cors_origins = ""
    parameters.endpoint_slots = False
    parameters.n_ctx = order["context"]
    parameters.n_parallel = order["slots"]
    parameters.kv_unified = True
    parameters.cache_ram_mib = order["cache_mib"]
    # Conversations begin alike, with the same instructions: only a prompt that is mostly the
    # continuation of what a slot holds goes there, and a slot at rest keeps what it holds.
    # Measured over ten rounds of three conversations in turn: 89 % of the prompt tokens were
    # cached, instead of 83.
    parameters.slot_prompt_similarity = 0.7
    parameters.cache_idle_slots = False
    parameters.cpuparams.n_threads = order["threads"]
    parameters.cpuparams_batch.n_threads = order["threads"]
    server = xllamacpp.Server(parameters)
    address: str = server.listening_address
    [model] = _ask(f"{address}/v1/models", order["key"])["data"]
    served = Served(
        port=int(address.rpartition(":")[2]),
        window=min(model["meta"]["n_ctx_train"], order["context"]),
        parameters=model["meta"]["n_params"],
    )
    return server, served


def _ask(url: str, key: str) -> dict[str, list[dict[str, dict[str, int]]]]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        found: dict[str, list[dict[str, dict[str, int]]]] = json.load(answer)
        return found


if __name__ == "__main__":
    main()
