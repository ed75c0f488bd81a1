"""Logs: lines for people, JSON for machines, and no secret in either.

The library's own events and those of the standard library's loggers take one path, and each line
passes the masks as the last thing before it is written, so that a traceback or a foreign
message is covered as well.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import quote, quote_plus

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "********"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LOUD = ("uvicorn", "httpx2", "httpcore2", "openai", "asyncio", "h11")
"""Foreign loggers that tell of every request: heard only when something is wrong."""

LOG_FILE_BYTES = 5_000_000
LOG_FILES_KEPT = 3

_PATTERNS = re.compile(
    r"(?P<head>(?i:authorization|proxy-authorization|x-api-key|api-key)[\"']?\s*[:=]\s*[\"']?)"
    r"(?:(?i:bearer|basic|token)\s+)?[^\s\"',}]+"
    r"|(?P<scheme>(?i:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<user>://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"
    r"|\b(?:sk|rk|pk|xox[abprs]|gh[pousr]|github_pat|glpat)[-_][A-Za-z0-9_-]{12,}"
    r"|\bAKIA[A-Z0-9]{16}\b"
    r"|(?<!\d)\d{6,12}(?::|%3[Aa])[A-Za-z0-9_-]{30,}"
)


_PIECE = 8
"""Characters at a secret's head or tail that are masked also where the rest is missing."""


class Masks:
    """What takes secrets out of a text: the configured ones by value, others by their form."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            for form in (secret, secret.strip(), quote(secret, safe=""), quote_plus(secret)):
                forms |= {form, orjson.dumps(form).decode()[1:-1], repr(form)[1:-1]}
        self._forms = [form for form in forms if len(form) >= 4]

    def __call__(self, text: str) -> str:
        """`text` with every secret replaced by a mask."""
        spans = sorted(span for form in self._forms for span in _spans(text, form))
        pieces, shown = [], 0
        for start, end in spans:
            if start >= shown:
                pieces += [text[shown:start], MASK]
            shown = max(shown, end)
        return _PATTERNS.sub(_mask_match, "".join([*pieces, text[shown:]]))


def _spans(text: str, secret: str) -> Iterator[tuple[int, int]]:
    """Where `secret` stands in `text`, or its beginning or end if it was cut or split."""
    if len(secret) < 2 * _PIECE:
        for match in re.finditer(re.escape(secret), text):
            yield match.span()
        return
    head, tail = secret[:_PIECE], secret[-_PIECE:]
    start = text.find(head)
    while start >= 0:
        end = start + _shared(text[start : start + len(secret)], secret)
        yield start, end
        start = text.find(head, end)
    end = text.find(tail) + _PIECE
    while end >= _PIECE:
        before = text[max(0, end - len(secret)) : end]
        yield end - _shared(before[::-1], secret[::-1]), end
        end = text.find(tail, end) + _PIECE


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _mask_match(match: re.Match[str]) -> str:
    return f"{match['head'] or match['scheme'] or match['user'] or ''}{MASK}"


def wants_json(form: Literal["auto", "console", "json"], environ: Mapping[str, str]) -> bool:
    """Whether lines are JSON: asked for, or `auto` in a process that systemd started."""
    if form == "auto":
        return "JOURNAL_STREAM" in environ or "INVOCATION_ID" in environ
    return form == "json"


def configure_logging(
    *,
    level: Literal["debug", "info", "warning", "error"],
    form: Literal["auto", "console", "json"],
    secrets: Iterable[str],
    file: Path | None = None,
) -> None:
    """Send every log line, ours and foreign, masked to standard error, or to `file` (closed to
    others, bounded in size). Called before anything logs, and again when any of it changes."""
    handler: logging.Handler = (
        logging.StreamHandler(sys.stderr) if file is None else _log_file(file)
    )
    colors = file is None and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    renderer: Processor = (
        _render_json if wants_json(form, os.environ) else _console_renderer(colors)
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler.setFormatter(_MaskingFormatter(shared, renderer, Masks(secrets)))
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], [handler]
    for one in before:
        one.close()
    root.setLevel(LEVELS[level])
    logging.captureWarnings(True)
    for name in _LOUD:
        logging.getLogger(name).setLevel(max(LEVELS["warning"], LEVELS[level]))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        # What a logger is bound to at first use stays; the level is looked up at each line.
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


class _MaskingFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders an event and masks the line as a whole."""

    def __init__(self, foreign: list[Processor], renderer: Processor, masks: Masks) -> None:
        super().__init__(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *foreign],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
        self._masks = masks

    def format(self, record: logging.LogRecord) -> str:
        return self._masks(super().format(record))


def _render_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _console_renderer(colors: bool) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
    )


def _log_file(file: Path) -> logging.Handler:
    told = False

    def closed_to_others(path: str, mode: int) -> int:
        return os.open(path, mode, 0o600)

    class Handler(RotatingFileHandler):
        def _open(self) -> TextIO:  # type: ignore[override]  # narrower, with the file's mode
            return open(self.baseFilename, "a", encoding="utf-8", opener=closed_to_others)

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # its name there
            """One line, once; the standard one prints two tracebacks for each line that is lost."""
            nonlocal told
            if not told:
                told = True
                problem = sys.exc_info()[1]
                print(f"teaagentd: {file} cannot be written: {problem}", file=sys.stderr)

    return Handler(file, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES_KEPT, delay=True)
