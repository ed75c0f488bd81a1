"""What a refusal means: HTTP statuses, error bodies and error events as errors of our own.

Servers agree on little but the status. Where an error comes inside a stream of status 200, its
code, type or wording stands in for the status.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large|model_max_prompt_tokens_exceeded"
    r"|maximum context length|context (?:window|length|size)|prompt is too long"
    r"|(?:input|prompt|request)[^.]{0,60}too (?:long|many tokens)"
    r"|too many (?:input |prompt )?tokens|tokens? (?:\S+ ){0,3}exceeds?\b|reduce the length of",
    re.IGNORECASE,
)
_SPENT = re.compile(
    r"insufficient_quota|insufficient (?:credit|balance|fund)|out of credits?|credit balance"
    r"|(?:monthly|weekly|spend(?:ing)?|hard|credit) (?:usage )?limit",
    re.IGNORECASE,
)
"""What waiting does not mend."""
_MONEY = re.compile(r"billing|payment|exceeded your current quota", re.IGNORECASE)
"""The same, unless it only stands beside a passing limit: many of those advertise a way to pay."""
_SOON_S = 3600
_RATE_LIMIT = r"rate.?limit|too many requests|per (?:second|minute|day|hour)|\b[RT]P[MD]\b"
_PASSING_RATE = re.compile(_RATE_LIMIT, re.IGNORECASE)
_RATE = re.compile(rf"{_RATE_LIMIT}|quota|overloaded_for_key", re.IGNORECASE)
_OVERLOAD = re.compile(r"overload|unavailable|busy|try again|timeout|timed out", re.IGNORECASE)
_KEY = re.compile(r"invalid_api_key|authentication|unauthori[sz]ed|permission_error", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:maximum context length (?:is|of)|available context size \(|context (?:window|length|size)"
    r" (?:is|of)|limit (?:is|of)|exceeds?|>) *(\d{3,9})",
    re.IGNORECASE,
)
_UNITS = {
    "ms": (0.001, r"ms|milliseconds?"),
    "s": (1.0, r"s|secs?|seconds?"),
    "m": (60.0, r"m|mins?|minutes?"),
    "h": (3600.0, r"h|hrs?|hours?"),
    "d": (86400.0, r"d|days?"),
}
_PART = "|".join(rf"(?P<{name}>\d+(?:\.\d+)?) ?(?:{words})" for name, (_, words) in _UNITS.items())
_SPAN = re.compile(rf"(?:{_PART})(?![a-z])", re.IGNORECASE)
_ANY_UNIT = "|".join(words for _, words in _UNITS.values())
_WAIT = re.compile(
    r"(?:try again|retry(?: again)?|resets?|available(?: again)?|wait)(?: (?:in|after|for))? "
    rf"((?:\d+(?:\.\d+)? ?(?:{_ANY_UNIT})(?![a-z])[ ,]*(?:and )?)+)",
    re.IGNORECASE,
)
_LONG = 300
_READ = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An error as a server words it."""

    status: int | None
    code: str
    message: str
    limit_tokens: int | None = None
    wait_s: float | None = None
    """Seconds to wait, as the body says."""


def read_refusal(body: object, status: int | None = None) -> Refusal | None:
    """The error in `body` (parsed JSON, or text), or None when it holds none."""
    if isinstance(body, str):
        found = Refusal(status=status, code="", message=body, wait_s=_told_wait(body))
        return found if body or status else None
    if not isinstance(body, dict):
        return Refusal(status=status, code="", message="") if status else None
    error = body.get("error")
    if not error and body.get("type") != "error" and status is None:
        return None
    inner = error if isinstance(error, dict) else body
    words = [inner.get(name) for name in ("code", "type", "status")]
    message = inner.get("message") or inner.get("detail")
    if isinstance(error, str):
        message = error
    number = next((word for word in words if _is_status(word)), None)
    limit = inner.get("n_ctx")
    message = message if isinstance(message, str) else ""
    return Refusal(
        status=status if status is not None else number,
        code=" ".join(str(word) for word in words if word),
        message=message,
        limit_tokens=limit if isinstance(limit, int) else None,
        wait_s=_stated_wait(inner) or _told_wait(message),
    )


def _stated_wait(inner: Mapping[str, object]) -> float | None:
    """The wait in a field of its own: `retry_after`, or Google's RetryInfo (AIP-193)."""
    wait = inner.get("retry_after")
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 < wait < math.inf:
        return float(wait)
    details = inner.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (seconds := _span(delay)):
            return seconds
    return None


def _told_wait(message: str) -> float | None:
    """The wait in the words of a refusal: "try again in 6m0s", "resets in 3 hours"."""
    found = _WAIT.search(message[:_READ])
    return _span(found[1]) if found else None


def _span(text: str) -> float | None:
    """The seconds in "1h2m3.5s", "34s" or "2 minutes and 3 seconds"; None when there are none."""
    seconds = 0.0
    for part in _SPAN.finditer(text):
        unit = part.lastgroup or "s"
        seconds += float(part[unit]) * _UNITS[unit][0]
    return seconds or None


def _is_status(word: object) -> bool:
    return isinstance(word, int) and not isinstance(word, bool) and 400 <= word < 600


def classify(refusal: Refusal) -> type[ProviderError]:
    """The kind of error that `refusal` is."""
    status, said = refusal.status, f"{refusal.code} {refusal.message}"
    if status == 402 or (status in (403, 429, None) and _is_spent(said, refusal.wait_s)):
        return QuotaExhausted
    if status in (401, 403):
        return AuthenticationFailed
    if status == 429:
        return RateLimited
    if _OVERFLOW.search(said) and not _RATE.search(said):
        return ContextOverflow
    if status is None:
        return _by_words(said)
    if status == 413 and _RATE.search(said):
        return RateLimited
    if status in (408, 409, 425) or status >= 500:
        return ProviderUnavailable
    return RequestRefused


def _is_spent(said: str, wait_s: float | None) -> bool:
    """Whether quota or credit is used up, and not only a rate for a while."""
    if _SPENT.search(said):
        return True
    passing = _PASSING_RATE.search(said) or (wait_s is not None and wait_s < _SOON_S)
    return _MONEY.search(said) is not None and not passing


def _by_words(said: str) -> type[ProviderError]:
    """An error without a status: the wording decides, and an unknown one counts as passing."""
    if _KEY.search(said):
        return AuthenticationFailed
    if _RATE.search(said):
        return RateLimited
    if "invalid_request" in said and not _OVERLOAD.search(said):
        return RequestRefused
    return ProviderUnavailable


def error_from(
    refusal: Refusal, *, provider: str, secret: str | None, retry_after_s: float | None = None
) -> ProviderError:
    """`refusal` as an error that says what happened and what to do, without the key."""
    refusal = replace(refusal, wait_s=retry_after_s or refusal.wait_s)
    kind = classify(refusal)
    detail = mask(refusal.message or refusal.code, secret)
    detail = " ".join(detail.split())
    if len(detail) > _LONG:
        detail = detail[:_LONG] + "…"
    status = f" ({refusal.status})" if refusal.status else ""
    said = f": {detail}" if detail else ""
    error: ProviderError
    if kind is ContextOverflow:
        error = ContextOverflow(
            f"the conversation does not fit the model's window, says {provider}{status}{said}"
        )
        found = _LIMIT.search(refusal.message)
        given = refusal.limit_tokens
        error.limit_tokens = given or (int(found.group(1)) if found else None)
    elif kind is AuthenticationFailed:
        error = AuthenticationFailed(
            f"{provider} does not accept the key{status}; set its api_key{said}"
        )
    elif kind is QuotaExhausted:
        error = QuotaExhausted(f"the quota or credit at {provider} is used up{status}{said}")
        error.retry_after_s = refusal.wait_s
    elif kind is RateLimited:
        error = RateLimited(f"{provider} takes no more requests for now{status}{said}")
        error.retry_after_s = refusal.wait_s
    elif kind is RequestRefused:
        error = RequestRefused(f"{provider} refuses the request{status}{said}")
    else:
        error = ProviderUnavailable(f"{provider} is not able to answer now{status}{said}")
        error.retry_after_s = refusal.wait_s
    error.provider = provider
    error.status = refusal.status
    return error


def retry_after(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Seconds to wait as the headers say (RFC 9110, 10.2.3; a date or seconds), None when they
    say nothing, nothing readable, or a time that is not ahead."""
    wait = _seconds(headers.get("retry-after-ms"))
    if wait is not None:
        wait /= 1000
    value = headers.get("retry-after")
    if wait is None:
        wait = _seconds(value)
    if wait is None and value:
        try:
            wait = parsedate_to_datetime(value).timestamp() - now_ms / 1000
        except (ValueError, OverflowError, IndexError):
            return None
    return wait if wait is not None and wait > 0 else None


def _seconds(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_KEY_SHAPED = re.compile(r"\b(?:sk|pk|gsk|key|xai|r8)[-_][\w*.-]{6,}")


def mask(text: str, secret: str | None) -> str:
    """`text` without `secret`, its percent-encoded form, or anything shaped like a key."""
    if secret:
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            text = text.replace(form, "***")
    return _KEY_SHAPED.sub("***", text)
