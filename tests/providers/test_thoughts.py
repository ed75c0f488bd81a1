"""Thinking in the text: what is shown, what is kept, and that it is the same however it is cut.

Faults of this kind: openclaw/openclaw#37696, amd/gaia#3945, QwenLM/qwen-code#8818,
NousResearch/hermes-agent#12361.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from teaagentd.providers.thoughts import Thoughts

LONG = "weigh this, then that\n" * 1000
FENCED = "Write it so:\n```html\n<think>a</think>\n```\nand no other way."
CASES = {
    "<think>a</think>b": ("b", "a"),
    "<THINK>a</THINK>\n\nb": ("b", "a"),
    "<thinking>\na\n</thinking>\nb": ("b", "\na\n"),
    "\n<think>a</think>b": ("b", "a"),
    "<think>a</think>b\n<think>c</think>d": ("b\nd", "ac"),
    "<think>a<think>b</think>c</think>d": ("d", "a<think>b</think>c"),
    f"<think>{LONG}</think>b": ("b", LONG),
    "<think>Hello there": ("Hello there", ""),
    "b\n<think>and more": ("b\n<think>and more", ""),
    "plan plan</think>answer": ("answer", "plan plan"),
    "plan\n</think>\n\nanswer": ("answer", "plan\n"),
    FENCED: (FENCED, ""),
    "The tag `<think>` opens, `</think>` closes.": (
        "The tag `<think>` opens, `</think>` closes.",
        "",
    ),
    "The tag <think> opens it.": ("The tag <think> opens it.", ""),
    '{"action": "answer", "text": "a</think>b"}': (
        '{"action": "answer", "text": "a</think>b"}',
        "",
    ),
    '<think>a</think>{"action": "answer"}': ('{"action": "answer"}', "a"),
    "<think>the `</think>` tag</think>b": ("b", "the `</think>` tag"),
    "1 < 2, <b>bold</b>, <th": ("1 < 2, <b>bold</b>, <th", ""),
    "<think></think>b": ("b", ""),
    "~~~\n</think>\n~~~": ("~~~\n</think>\n~~~", ""),
}


def told(pieces: list[str], *, prefilled: bool = False) -> tuple[Thoughts, str]:
    thoughts = Thoughts(prefilled=prefilled)
    shown = "".join(thoughts.feed(piece) for piece in pieces)
    return thoughts, shown + thoughts.end(calls=False)


@pytest.mark.parametrize("text", CASES)
def test_the_answer_is_told_from_the_thinking(text: str) -> None:
    thoughts, shown = told([text])
    assert (thoughts.said.lstrip(), thoughts.thought) == CASES[text]
    assert thoughts.restated or thoughts.said == shown


@pytest.mark.parametrize("text", CASES)
def test_it_is_the_same_letter_by_letter(text: str) -> None:
    whole, _ = told([text])
    thoughts, shown = told(list(text))
    assert (thoughts.said, thoughts.thought) == (whole.said, whole.thought)
    assert shown.endswith(thoughts.said)
    assert (shown == thoughts.said) == (not thoughts.restated)


_BITS = st.sampled_from(
    ["<think>", "</think>", "<THINKING>", "</thinking >", "`", "```", "\n", " ", "a", "<", "{", "é"]
)


@given(st.lists(_BITS, max_size=12).map("".join), st.data())
@example("a</think>", None)
def test_any_cut_gives_the_same(text: str, data: st.DataObject | None) -> None:
    pieces, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest))) if data else 1
        pieces.append(rest[:size])
        rest = rest[size:]
    (whole, _), (cut, shown) = told([text]), told(pieces)
    assert (whole.said, whole.thought) == (cut.said, cut.thought)
    if not cut.restated:
        assert shown == cut.said
    if "think" not in text.lower():
        assert cut.said == text


def test_a_block_that_stays_open_beside_a_call_is_thinking() -> None:
    thoughts = Thoughts()
    assert thoughts.feed("<think>call it") + thoughts.end(calls=True) == ""
    assert (thoughts.said, thoughts.thought) == ("", "call it")


@pytest.mark.parametrize(
    ("text", "answer"),
    [("plan</think>\nb", "b"), ("just this", "just this"), ("<think>plan</think>b", "b")],
)
def test_a_block_that_the_prompt_opens_is_not_shown(text: str, answer: str) -> None:
    thoughts, shown = told(list(text), prefilled=True)
    assert thoughts.said == shown == answer
