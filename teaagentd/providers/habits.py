"""What one model of one server was found to take and to give, learnt from its refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from teaagentd.errors import ProviderError
from teaagentd.providers.wire import Body, Messages

_OPTIONAL = ("stream_options", "response_format", "temperature", "reasoning_effort", "reasoning")
"""What a server may refuse, and an answer can do without."""
_LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecogni[sz]ed|unknown|unexpected|not permitted|extra", re.I
)
_NO_TOOLS = re.compile(
    r"(?:does|do) not support (?:tools?|function)|(?:tools?|tool (?:use|calling|choice)|functions?)"
    r" (?:is|are) not supported|support tool use|enable-auto-tool-choice",
    re.I,
)


@dataclass(kw_only=True, slots=True)
class Habits:
    """Of one model. `reasoning`: whether it wants back what it thought before a call, None while
    nothing is known. `prefilled`: its replies begin with thinking that they do not open."""

    refused: set[str] = field(default_factory=set)
    limit_name: str | None = None
    reasoning: bool | None = None
    prefilled: bool = False

    def fit(self, body: Body) -> Body:
        """`body` as this model takes it."""
        sent: Body = {}
        for name, value in body.items():
            if name in self.refused:
                continue
            if isinstance(value, Messages) and self.reasoning:
                value = value.with_reasoning()
            sent[(self.limit_name or name) if name in _LIMITS else name] = value
        return sent

    def learn(self, problem: ProviderError, sent: Body) -> str | None:
        """What the next request can do otherwise after `problem`: the field that was changed, or
        None. No field is changed more often than there are ways to send it."""
        if problem.status not in (400, 422) or problem.streamed:
            return None
        text = str(problem)
        if "reasoning_content" in text and self.reasoning is not False:
            self.reasoning = self.reasoning is None
            return "reasoning_content"
        for name, other in _LIMITS.items():
            wrong = name in sent and self.limit_name is None and re.search(rf"\b{name}\b", text)
            if wrong and (other in text or _UNKNOWN.search(text)):
                self.limit_name = other
                return name
        for name in _OPTIONAL:
            if name in sent and re.search(rf"\b{name}\b", text):
                self.refused.add(name)
                return name
        return None


def refuses_tools(problem: ProviderError) -> bool:
    """Whether the model has no tool calling of its own, as its server words it."""
    return problem.status in (400, 404, 422, 501) and _NO_TOOLS.search(str(problem)) is not None
