"""The two ways in which a decision is asked for and given: a server's tool calling, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from teaagentd import transcript
from teaagentd.agent.decisions import (
    DecisionContentStreamer,
    FinalAnswer,
    ToolCalls,
    decision_schema,
    is_blank,
    parse_model_decision,
    render_answer,
    render_call,
)
from teaagentd.errors import ToolValidationError
from teaagentd.types import LLMMessage, LLMRequest, LLMResponse, ToolSpec

DialectName = Literal["native", "json"]

INVALID_DECISION = "invalid_model_decision_json"
"""`metadata["decision_fallback"]` of the sentinel below."""
SENTINEL = '{"status":"error","action":"wait","reason":"invalid_model_decision_json"}'
_INLINE = 400
"""Longest one-line result, in characters, that is told without a frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """What a decision is asked about."""

    system: str
    history: Sequence[LLMMessage]
    tools: tuple[ToolSpec, ...]
    answer_only: bool
    """The tools stay in the request, and none may be called."""


class Dialect(Protocol):
    """Renders requests and reads replies. Pure: the same history gives the same bytes."""

    def request(self, ask: Ask) -> LLMRequest: ...

    def listen(self, on_text: Callable[[str], None]) -> Callable[[str], None]:
        """An `on_chunk` that gives `on_text` the words for the user in what is streamed."""

    def read(self, response: LLMResponse, ask: Ask) -> FinalAnswer | ToolCalls:
        """Raises `ToolValidationError`, worded for the model, when it must be asked again."""

    def message(self, response: LLMResponse, decision: FinalAnswer | ToolCalls) -> LLMMessage:
        """The assistant message to keep."""

    def repair(self, response: LLMResponse, problem: str) -> tuple[LLMMessage, ...]:
        """What is put behind the history to ask again after an unreadable reply."""


class NativeDialect:
    """The provider's own tool calling; several calls in one reply."""

    def request(self, ask: Ask) -> LLMRequest:
        return LLMRequest(
            messages=transcript.legal((_system(ask.system), *ask.history)),
            tools=ask.tools,
            tool_choice="none" if ask.answer_only else "auto",
        )

    def listen(self, on_text: Callable[[str], None]) -> Callable[[str], None]:
        return on_text

    def read(self, response: LLMResponse, ask: Ask) -> FinalAnswer | ToolCalls:
        if response.tool_calls and not ask.answer_only:
            notice = None if is_blank(response.content) else response.content
            return ToolCalls(calls=response.tool_calls, notice=notice)
        return FinalAnswer(content=response.content)

    def message(self, response: LLMResponse, decision: FinalAnswer | ToolCalls) -> LLMMessage:
        return _message(response, decision)

    def repair(self, response: LLMResponse, problem: str) -> tuple[LLMMessage, ...]:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonDialect:
    """One JSON object per reply, held to a schema by servers that can.

    `brief` is for very small models: they are told one line per tool and offered no optional
    parameters, as they make up a value for each; and a tool whose result they have just been
    given is not offered again, as they call it again and again; and they are asked to answer
    with its words, as they get their own wrong. Other models are told each tool's whole
    description and parameters. `answer_limit` bounds an answer, in characters: a
    small model talks until it is stopped.
    """

    brief: bool = False
    answer_limit: int | None = None

    def request(self, ask: Ask) -> LLMRequest:
        system = f"{ask.system}\n\n{self.instructions(ask.tools)}".strip()
        messages = transcript.legal((_system(system), *ask.history))
        tools = _offered_to_small(ask) if self.brief else ask.tools
        schema = decision_schema(tools, answer_only=ask.answer_only, answer_limit=self.answer_limit)
        rendered = render_history(messages, copying=self.brief)
        return LLMRequest(messages=tuple(rendered), response_schema=schema)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """How to decide, for the end of the system prompt."""
        lines = [
            "Reply with one JSON object and nothing else.",
            '{"action": "answer", "text": "..."} says something to the user.',
        ]
        describe = _brief_line if self.brief else _full_lines
        return "\n".join((*lines, *(describe(tool) for tool in tools)))

    def listen(self, on_text: Callable[[str], None]) -> Callable[[str], None]:
        return DecisionContentStreamer(on_text)

    def read(self, response: LLMResponse, ask: Ask) -> FinalAnswer | ToolCalls:
        if is_blank(response.content):
            return FinalAnswer(content="")
        try:
            decision = parse_model_decision(response.content)
        except ToolValidationError as error:
            if response.finish_reason == "length":
                raise ToolValidationError("it was cut off; keep it shorter") from error
            raise
        if ask.answer_only and isinstance(decision, ToolCalls):
            raise ToolValidationError("tools cannot be used any more; answer the user now")
        return decision

    def message(self, response: LLMResponse, decision: FinalAnswer | ToolCalls) -> LLMMessage:
        message = _message(response, decision)
        if isinstance(decision, FinalAnswer) and decision.metadata:
            return message
        return replace(message, raw=response.content)

    def repair(self, response: LLMResponse, problem: str) -> tuple[LLMMessage, ...]:
        return (
            LLMMessage(role="assistant", content=response.content, raw=response.content),
            LLMMessage(
                role="user",
                content=f"Your reply could not be used: {problem}. "
                "Reply again, with one JSON object and nothing else.",
            ),
        )


def plain_text_fallback(text: str) -> FinalAnswer | None:
    """What a reply that is no decision may still say: plain words, or the part of an answer
    that came before it was cut off. None when it says nothing to the user."""
    if not text.lstrip().startswith(("{", "[", "`")):
        return FinalAnswer(content=text.strip(), metadata={"decision_fallback": "plain_text"})
    pieces: list[str] = []
    DecisionContentStreamer(pieces.append)(text)
    said = "".join(pieces)
    if is_blank(said):
        return None
    return FinalAnswer(content=said, metadata={"decision_fallback": "partial_answer"})


def invalid_decision() -> FinalAnswer:
    """What stands for a decision when no reply could be understood."""
    return FinalAnswer(content=SENTINEL, metadata={"decision_fallback": INVALID_DECISION})


def render_history(messages: Sequence[LLMMessage], *, copying: bool = False) -> list[LLMMessage]:
    """A legal history as a chat without tools, user and assistant in turn.

    Decisions stand as the model wrote them; results become the user's words, with the request
    to copy them if the model is better at that (`copying`). What follows one
    upon the other from the same side is joined, which changes no message that an earlier
    request has shown: between two requests there is always a reply.
    """
    out: list[LLMMessage] = []
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    for message in messages:
        if message.role == "tool":
            continue
        if message.role == "assistant" and message.tool_calls:
            for index, call in enumerate(message.tool_calls):
                said = message.content if index == 0 else ""
                written = render_call(call.name, call.arguments, said)
                if message.raw and len(message.tool_calls) == 1:
                    written = message.raw
                _add(out, LLMMessage(role="assistant", content=written))
                result = results[call.id]
                told = render_result(result, copying)
                files = result.attachments
                _add(out, LLMMessage(role="user", content=told, attachments=files))
        elif message.role == "assistant":
            written = message.raw or render_answer(message.content)
            _add(out, LLMMessage(role="assistant", content=written))
        else:
            _add(out, message)
    return out


def _add(out: list[LLMMessage], message: LLMMessage) -> None:
    last = out[-1] if out else None
    if last is None or last.role != message.role or message.role == "system":
        out.append(message)
        return
    # The note of the second one goes where it belongs: right before its own words.
    content = "\n\n".join(text for text in (last.content, message.note, message.content) if text)
    attachments = (*last.attachments, *message.attachments)
    out[-1] = replace(last, content=content, attachments=attachments)


def render_result(result: LLMMessage, copying: bool = False) -> str:
    """A tool's result as the user's words. A long one is framed by its call's id, which what
    the tool brings from outside cannot know, and so cannot end the frame."""
    text, request = f" {result.content}", "Now answer the question."
    if len(text) > _INLINE or "\n" in text:
        frame = f"result {result.tool_call_id}"
        text = f"\n<{frame}>\n{result.content}\n</{frame}>"
    elif copying:
        text, request = f' "{result.content}"', "Now answer the question with these words."
    return f"The result of {result.name} is:{text}\n{request}"


def _required(tool: ToolSpec) -> list[str]:
    required = tool.parameters.get("required", [])
    return [str(name) for name in required] if isinstance(required, list) else []


def _offered_to_small(ask: Ask) -> list[ToolSpec]:
    just_used = set()
    for message in reversed(ask.history):
        if message.role == "user":
            break
        just_used.add(message.name)
    return [_required_only(tool) for tool in ask.tools if tool.name not in just_used]


def _required_only(tool: ToolSpec) -> ToolSpec:
    properties = tool.parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        return tool
    required = _required(tool)
    kept = {name: schema for name, schema in properties.items() if name in required}
    return replace(tool, parameters={**tool.parameters, "properties": kept})


def _brief_line(tool: ToolSpec) -> str:
    what = tool.description.split(". ")[0].split("\n")[0].rstrip(".")
    call = render_call(tool.name, dict.fromkeys(_required(tool), "..."))
    return f"{call} {what[:1].lower()}{what[1:]}."


def _full_lines(tool: ToolSpec) -> str:
    properties = tool.parameters.get("properties", {})
    names = dict.fromkeys(properties, "...") if isinstance(properties, Mapping) else {}
    schema = json.dumps(tool.parameters, ensure_ascii=False)
    return f"{render_call(tool.name, names)} {tool.description}\n  Its arguments: {schema}"


def _system(text: str) -> LLMMessage:
    return LLMMessage(role="system", content=text)


def _message(response: LLMResponse, decision: FinalAnswer | ToolCalls) -> LLMMessage:
    calls = decision.calls if isinstance(decision, ToolCalls) else ()
    said = decision.notice if isinstance(decision, ToolCalls) else decision.content
    return LLMMessage(
        role="assistant",
        content=said or "",
        tool_calls=calls,
        reasoning=response.reasoning,
        thinking=response.thinking,
        model=response.model or None,
    )
