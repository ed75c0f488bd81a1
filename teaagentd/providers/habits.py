"""What one model of one server was found to take and to give, learnt from its refusals."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field

from teaagentd.errors import ContextOverflow, ProviderError, RequestRefused
from teaagentd.providers.wire import BUDGETS, Body, Messages, Wire, effort

_OPTIONAL = (
    "stream_options",
    "response_format",
    "temperature",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "output_config",
    "cache_control",
)
"""What a server may refuse, and an answer can do without."""
SIGNATURE = "signature"
"""What `Habits.learn` calls a refusal of thinking whose signature does not fit. It is a matter of
one history, not of the model."""
PICTURES = "pictures"
"""What it calls a refusal of pictures."""
DOUBT = "pictures, perhaps"
"""What it calls one that may be for the pictures: whether a request without them is taken shows."""
_LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_SIGNED = re.compile(r"signature|thinking.{0,40}cannot be modified", re.I)
_MOST_OUTPUT = re.compile(r"max_tokens: \d+ > (\d+)")
_BLIND = re.compile(
    r"image_url|image[ _](?:input|content|url|modality)|input_image|type.{0,9}image|vision"
    r"|multi-?modal|mmproj|(?:does|do) not support (?:the )?(?:image|picture|vision)"
    r"|images? (?:is|are) not supported|support images?",
    re.I,
)
_SPOILT = re.compile(
    r"(?:could not|cannot|can't|failed to|unable to) (?:process|load|decode|read|identify|open)"
    r".{0,20}image|image.{0,60}(?:too (?:large|many|big|small)|exceed|corrupt|invalid|malformed"
    r"|truncated|dimension|unsupported)|(?:invalid|corrupt|unsupported|malformed|too many)"
    r".{0,20}(?:image|base64)",
    re.I,
)
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
    most_output: int | None = None
    other_thinking: bool = False
    """Whether the model wants to be asked for thinking in the other of two ways."""
    blind: bool = False
    """Whether it takes no pictures."""
    spoilt: set[str] = field(default_factory=set)
    """Pictures that it cannot read, though it reads others."""
    read: set[str] = field(default_factory=set)
    """Pictures that it has taken."""

    def fit(self, body: Body) -> Body:
        """`body` as this model takes it."""
        sent: Body = {}
        for name, value in body.items():
            if name in self.refused:
                continue
            if isinstance(value, Messages):
                value = self._fit_messages(value)
            if name == "max_tokens" and self.most_output is not None:
                value = _at_most(value, self.most_output)
            sent[(self.limit_name or name) if name in _LIMITS else name] = value
        return other_thinking(sent) if self.other_thinking else sent

    def _fit_messages(self, messages: Messages) -> Messages:
        if self.reasoning:
            messages = messages.with_reasoning()
        pictures = messages.pictures
        if not pictures:
            return messages
        left_out = pictures if self.blind else pictures & self.spoilt
        return messages.without_pictures(left_out) if left_out else messages

    def learn(self, problem: ProviderError, sent: Body) -> str | None:
        """What the next request can do otherwise after `problem`: the field that was changed, or
        None. No field is changed more often than there are ways to send it."""
        if problem.streamed:
            return None
        option = self._option(problem, sent) if problem.status in (400, 422) else None
        return option or self._of_pictures(problem, sent)

    def answered(self, sent: Body) -> None:
        """It has taken `sent`."""
        self.read |= pictures_in(sent)

    def answered_without(self, left_out: Set[str]) -> None:
        """It has taken a request when these pictures were left out of it, and none with them."""
        if self.read:
            self.spoilt |= left_out
        else:
            self.blind = True

    def _of_pictures(self, problem: ProviderError, sent: Body) -> str | None:
        pictures, text = pictures_in(sent), str(problem)
        overlong = isinstance(problem, ContextOverflow)
        if not pictures or problem.status not in (400, 404, 413, 415, 422, 500, 501):
            return None
        fresh = pictures - self.read
        if problem.status == 413 or (_SPOILT.search(text) and not overlong):
            self.spoilt |= fresh or pictures
        elif overlong:
            return None
        elif _BLIND.search(text):
            self.blind = True
        else:
            doubtful = fresh and isinstance(problem, RequestRefused) and problem.status != 404
            return DOUBT if doubtful else None
        return PICTURES

    def _option(self, problem: ProviderError, sent: Body) -> str | None:
        text = str(problem)
        if _SIGNED.search(text) and _has_thinking(sent):
            return SIGNATURE
        if (found := _MOST_OUTPUT.search(text)) and "max_tokens" in sent:
            self.most_output = int(found[1])
            return "max_tokens"
        if "thinking" in sent and "thinking" in text and not self.other_thinking:
            self.other_thinking = True
            return "thinking"
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


def _at_most(value: object, most: int) -> int:
    return min(value, most) if isinstance(value, int) else most


def _has_thinking(sent: Body) -> bool:
    messages = sent.get("messages")
    return isinstance(messages, Messages) and messages.thinks


def pictures_in(sent: Body) -> frozenset[str]:
    """The paths of the pictures that go out with `sent`."""
    messages = sent.get("messages")
    return messages.pictures if isinstance(messages, Messages) else frozenset()


def without_pictures(body: Body) -> Messages:
    """The messages of `body` without any picture."""
    messages = body["messages"]
    assert isinstance(messages, Messages)
    return messages.without_pictures(messages.pictures)


def without_thinking(body: Body) -> Messages:
    """The messages of `body` without what was thought before them."""
    messages = body["messages"]
    assert isinstance(messages, Messages)
    return messages.without_thinking()


def other_thinking(sent: Body) -> Body:
    """`sent` with the other of the two ways to ask for thinking: by an effort, or by a budget."""
    match sent.get("thinking"):
        case {"type": "enabled", "budget_tokens": int(tokens)}:
            way: Wire = {"type": "adaptive"}
            return {**sent, "thinking": way, "output_config": {"effort": effort(tokens)}}
        case {"type": "adaptive"}:
            match sent.get("output_config"):
                case {"effort": "low" | "medium" | "high" as word}:
                    tokens = BUDGETS[word]
                case _:
                    tokens = BUDGETS["medium"]
            kept = {name: value for name, value in sent.items() if name != "output_config"}
            return {**kept, "thinking": {"type": "enabled", "budget_tokens": tokens}}
        case _:
            return sent


def refuses_tools(problem: ProviderError) -> bool:
    """Whether the model has no tool calling of its own, as its server words it."""
    return problem.status in (400, 404, 422, 501) and _NO_TOOLS.search(str(problem)) is not None
