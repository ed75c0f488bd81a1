"""Choosing a provider when none is configured: by the keys in the environment, else local."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OPENROUTER_URL = "https://openrouter.ai/api/v1"
OLLAMA_PORT = 11434


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A provider that was picked for an operator who named none."""

    values: Mapping[str, str]
    """What to write in the `[provider]` table, placeholders unfilled."""
    reason: str
    """One sentence: which, why, and whether it costs money."""


def choose(environ: Mapping[str, str]) -> Choice:
    """The first of `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `OPENROUTER_API_KEY`, `OLLAMA_HOST`
    that is set, else the embedded model."""
    if environ.get("ANTHROPIC_API_KEY"):
        return Choice(
            values={"type": "anthropic", "api_key": "${ANTHROPIC_API_KEY}"},
            reason="Claude answers, since ANTHROPIC_API_KEY is set. Each message costs money at "
            "Anthropic.",
        )
    if environ.get("OPENAI_API_KEY"):
        return Choice(
            values={"type": "openai", "api_key": "${OPENAI_API_KEY}"},
            reason="OpenAI answers, since OPENAI_API_KEY is set. Each message costs money there.",
        )
    if environ.get("OPENROUTER_API_KEY"):
        return Choice(
            values={
                "type": "openai",
                "base_url": OPENROUTER_URL,
                "api_key": "${OPENROUTER_API_KEY}",
                "model": "openrouter/auto",
            },
            reason="OpenRouter answers, since OPENROUTER_API_KEY is set. Each message costs money "
            "there.",
        )
    if host := environ.get("OLLAMA_HOST"):
        return Choice(
            values={"type": "openai", "base_url": ollama_url(host), "model": "llama3.2"},
            reason=f"Ollama at {host} answers, since OLLAMA_HOST is set. It costs nothing.",
        )
    return Choice(
        values={"type": "local"},
        reason="A small model on this machine answers. It needs no key and costs nothing.",
    )


def ollama_url(host: str) -> str:
    """The API's address for a value of `OLLAMA_HOST`, which may lack scheme and port."""
    scheme, found, rest = host.rpartition("://")
    rest = rest.rstrip("/")
    name, _, port = rest.rpartition(":")
    if not name or not port.isdigit():
        rest = f"{rest}:{OLLAMA_PORT}"
    rest = rest.replace("0.0.0.0", "127.0.0.1")
    return f"{scheme if found else 'http'}://{rest}/v1"
