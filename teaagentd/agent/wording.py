"""What a run says to the user when it ends otherwise than with the model's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ModelMissing,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    SpendingRefused,
)
from teaagentd.transcript import spoken

ANSWER_IN_WORDS = "[Your last reply was empty. Answer the user now, in words.]"
"""Told to the model once, after an empty reply; not stored."""
CUT_OFF = "\n\n[cut off here: the reply reached the model's output limit; ask me to go on]"
NOT_UNDERSTOOD = (
    "The model's replies made no sense to me, several times over. Your message and what was done "
    "so far are kept. Ask again, or choose another model in the configuration."
)
TIMED_OUT = (
    "I ran out of time for this ({limit}) and stopped. What was done so far is kept; "
    "ask me to go on, or raise agent.turn_timeout_s."
)
BROKE = "Something went wrong inside me and I stopped. What you wrote is kept; please ask again."
CONDEMNED = (
    "I gave up on this: I was cut off three times while working on it. What you wrote is kept "
    "aside and can be retried."
)
RESUMED = "I was restarted and go on with your request."
INTERRUPTED = (
    "This was interrupted by a restart and not finished. Send it again if it still matters."
)
OUT_OF_HAND = (
    "This did not end when it should have, and I gave it up. What was done so far is kept."
)
STOPPED = "Stopped."
_KEPT = "Your message and what was done so far are kept."
_DETAIL = 200


def failure(error: ProviderError) -> str:
    """What happened, what was kept and what to do, after `error` ended a run."""
    match error:
        case AuthenticationFailed():
            return (
                "The model server did not accept my key for this model. "
                f"{_KEPT} Check its api_key and model in config.toml, then ask me to go on."
            )
        case RateLimited():
            wait = "in a few minutes"
            if error.retry_after_s is not None:
                wait = f"in {_duration(error.retry_after_s)}"
            return (
                f"The model server takes no more requests for now. {_KEPT} Ask me to go on {wait}."
            )
        case QuotaExhausted():
            begins = ""
            if error.retry_after_s is not None:
                begins = f" It begins anew in {_duration(error.retry_after_s)}."
            return (
                f"The credit or quota at the model server is used up.{begins} {_KEPT} Add to it "
                "there or choose another model, then ask me to go on."
            )
        case SpendingRefused():
            return f"{error} {_KEPT} Ask me to go on then, or raise the cap in config.toml."
        case ContextOverflow():
            return (
                "This conversation no longer fits into the model's window, and could not be made "
                "shorter. It is kept. Begin a new one with /new, or choose a model with a larger "
                "window."
            )
        case ModelMissing():
            return f"There is no model to answer you: {error}. {_KEPT} Then ask me to go on."
        case RequestRefused():
            return (
                f"The model server refused the request{_detail(error)}. {_KEPT} Asking again in "
                "other words may help; else begin anew with /new, or choose another model."
            )
        case _:
            return (
                f"The model server could not be reached or broke off{_detail(error)}, in spite of "
                f"several tries. {_KEPT} Ask me to go on when it is back."
            )


def limit(reached: str) -> str:
    """The run used up `reached` and had nothing to sum up."""
    return (
        f"I stopped: {reached}. What was done so far is kept. "
        "Ask me to go on, or raise the limit in the configuration."
    )


def fatal(tool: str, problem: str) -> str:
    return (
        f"I had to stop, because {tool} failed: {problem}. What was done so far is kept. "
        "Ask me to go on once that is mended."
    )


def report(notices: Sequence[str], done: Mapping[str, int], failed: Mapping[str, int]) -> str:
    """What stands for an answer that stayed empty: what was said beside the calls, else what
    was done. The store knows the former again, and no channel delivers it twice."""
    if notices:
        return spoken(notices)
    if not done:
        return "I have no answer to that. Please ask again, in other words."
    lines = []
    for name, count in done.items():
        times = f", {count} times" if count > 1 else ""
        bad = f" ({failed[name]} without success)" if failed.get(name) else ""
        lines.append(f"{name}{times}{bad}")
    return f"I have nothing to add to what I did: {'; '.join(lines)}. Ask me about it if you like."


def _detail(error: ProviderError) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    if not text:
        return f" (HTTP {error.status})" if error.status else ""
    return f" ({text if len(text) <= _DETAIL else text[:_DETAIL] + '…'})"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours"


def spoken_span(seconds: float) -> str:
    """A span of time as it is said."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
