"""What refusals mean: kinds of errors, waits, and texts without secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers.failures import error_from, mask, read_refusal, retry_after

NOW = datetime(2026, 12, 1, 9, 41, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def error(body: object, status: int | None = None) -> ProviderError:
    refusal = read_refusal(body, status)
    assert refusal is not None
    return error_from(refusal, provider="acme", secret="sk-canary-0123456789")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefused),
        (401, AuthenticationFailed),
        (402, QuotaExhausted),
        (403, AuthenticationFailed),
        (404, RequestRefused),
        (408, ProviderUnavailable),
        (409, ProviderUnavailable),
        (422, RequestRefused),
        (429, RateLimited),
        (500, ProviderUnavailable),
        (502, ProviderUnavailable),
        (503, ProviderUnavailable),
        (529, ProviderUnavailable),
    ],
)
def test_the_status_decides(status: int, kind: type[ProviderError]) -> None:
    found = error({"error": {"message": "so it is"}}, status)
    assert type(found) is kind
    assert found.status == status
    assert "so it is" in str(found)
    assert "acme" in str(found)


@pytest.mark.parametrize(
    ("status", "body", "limit"),
    [
        (400, {"error": {"code": "context_length_exceeded", "message": "too much"}}, None),
        (
            400,
            {"error": {"message": "This model's maximum context length is 8192 tokens."}},
            8192,
        ),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "type": "exceed_context_size_error",
                    "message": "request (9031 tokens) exceeds the available context size "
                    "(8192 tokens)",
                    "n_ctx": 8192,
                }
            },
            8192,
        ),
        (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, 200000),
        (None, {"error": {"message": "6009 tokens exceed 4096"}}, 4096),
        (500, {"error": "the request exceeds the context window of this model"}, None),
        (413, {"error": {"message": "Please reduce the length of the messages"}}, None),
    ],
)
def test_an_overflow_is_known_by_its_words(
    status: int | None, body: object, limit: int | None
) -> None:
    found = error(body, status)
    assert isinstance(found, ContextOverflow)
    assert found.limit_tokens == limit


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        # farzaa/clicky#132, open-jarvis/OpenJarvis#970
        ({"type": "error", "error": {"type": "overloaded_error"}}, ProviderUnavailable),
        ({"error": {"message": "busy", "code": 502}}, ProviderUnavailable),
        ({"id": "g", "error": {"code": 502}}, ProviderUnavailable),
        ({"error": {"code": 429, "message": "slow down"}}, RateLimited),
        ({"error": {"type": "rate_limit_error"}}, RateLimited),
        ({"error": {"code": "invalid_api_key"}}, AuthenticationFailed),
        ({"error": {"type": "invalid_request_error", "message": "no such tool"}}, RequestRefused),
        ({"error": "something broke"}, ProviderUnavailable),
        ({"error": {}, "type": "error"}, ProviderUnavailable),
    ],
)
def test_an_error_within_a_good_answer_is_known_by_what_it_says(
    body: object, kind: type[ProviderError]
) -> None:
    assert type(error(body)) is kind


@pytest.mark.parametrize("body", [{"choices": []}, {"error": None}, {"error": {}}, {}, [], 3])
def test_what_is_no_error_is_none(body: object) -> None:
    assert read_refusal(body) is None


def test_tokens_per_minute_are_a_rate_and_not_a_window() -> None:
    body = {"error": {"message": "Request too large for model: limit 6000 tokens per minute"}}
    assert isinstance(error(body, 413), RateLimited)


RATE = (RateLimited, 7.66)


# NousResearch/hermes-agent#104386, openclaw/openclaw#99097
@pytest.mark.parametrize(
    ("status", "said", "kind", "wait_s"),
    [
        (429, "", RateLimited, None),
        (429, "You have reached your monthly usage limit", QuotaExhausted, None),
        (429, "You exceeded your current quota, check your plan", QuotaExhausted, None),
        (429, "insufficient_quota", QuotaExhausted, None),
        (403, "Insufficient credits, add more", QuotaExhausted, None),
        (None, "Your credit balance is too low", QuotaExhausted, None),
        (429, "Quota exceeded for requests per minute", RateLimited, None),
        (429, "limit reached, resets in 3h", RateLimited, 10800.0),
        (429, "monthly limit reached, resets in 2 days", QuotaExhausted, 172800.0),
        (429, "Please try again in 6m0.5s.", RateLimited, 360.5),
        (429, "Please retry after 20 seconds", RateLimited, 20.0),
        (429, "wait 250ms", RateLimited, 0.25),
        (503, "Loading; try again in 1 minute and 30 seconds", ProviderUnavailable, 90.0),
        (429, "try again in a while", RateLimited, None),
        (429, "try again in 0s", RateLimited, None),
        (429, "please wait 3 messages", RateLimited, None),
        (429, "resets 5 sessions from now", RateLimited, None),
        (429, "retry in 1h2m3s or 4 moons", RateLimited, 3723.0),
        # Many a passing limit advertises a way to pay for more.
        (429, "Rate limit reached on TPM. Please try again in 7.66s. Add a payment method.", *RATE),
        (429, "Rate limit reached for requests, see settings/billing", RateLimited, None),
        (429, "You exceeded your current quota, see billing. Please retry in 7.66s.", *RATE),
        (429, "Add a payment method; try again in 3 days", QuotaExhausted, 259200.0),
    ],
)
def test_what_is_used_up_and_for_how_long_is_read_from_the_words(
    status: int | None, said: str, kind: type[ProviderError], wait_s: float | None
) -> None:
    found = error({"error": {"message": said}}, status)
    assert type(found) is kind
    assert getattr(found, "retry_after_s", None) == wait_s


@pytest.mark.parametrize(
    ("field", "wait_s"),
    [
        ({"retry_after": 7}, 7.0),
        ({"retry_after": -7}, None),
        ({"retry_after": True}, None),
        ({"details": [{"@type": "x"}, {"retryDelay": "34.5s"}]}, 34.5),
        ({"details": "none"}, None),
    ],
)
def test_a_wait_may_stand_in_a_field(field: dict[str, object], wait_s: float | None) -> None:
    found = error({"error": {"message": "slow down", **field}}, 429)
    assert isinstance(found, RateLimited)
    assert found.retry_after_s == wait_s


def test_a_header_goes_before_the_words() -> None:
    refusal = read_refusal({"error": {"message": "try again in 9s"}}, 429)
    assert refusal is not None
    found = error_from(refusal, provider="acme", secret=None, retry_after_s=2.0)
    assert isinstance(found, RateLimited)
    assert found.retry_after_s == 2.0


def test_a_short_wait_in_a_header_makes_a_quota_a_rate() -> None:
    refusal = read_refusal({"error": {"message": "You exceeded your current quota"}}, 429)
    assert refusal is not None
    found = error_from(refusal, provider="acme", secret=None, retry_after_s=2.0)
    assert isinstance(found, RateLimited)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "86400"}, 86400.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}, 30.0),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=30), usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "abc"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_only_a_wait_that_lies_ahead_is_one(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after(headers, NOW_MS) == wait_s


def test_a_text_holds_neither_the_key_nor_one_like_it() -> None:
    secret = "s3cret/with+signs="
    text = mask(f"bad {secret} or s3cret%2Fwith%2Bsigns%3D or sk-proj-abc***wxyz9", secret)
    assert "s3cret" not in text
    assert "sk-proj" not in text
    assert text.count("***") == 3


def test_an_html_page_or_a_long_body_does_not_flood_the_text() -> None:
    assert len(str(error("x" * 10_000, 502))) < 500
