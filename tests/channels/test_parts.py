"""split: what a channel's limit counts, and where a text may be cut.

NousResearch/hermes-agent#55844, #8725, tdlib/td#2984, FerroxLabs/wayland#934
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.channels.parts import split

FAMILY = "👨‍👩‍👧‍👦"
FLAG = "🇩🇪"


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@pytest.mark.parametrize(
    "text",
    [
        "😀" * 5000,
        "a" * 4095 + "😀",
        FAMILY * 700,
        FLAG * 3000,
        "e" + "\u0301" * 300 + "x" * 5000,
        "x" * 4095 + "e\u0301" + "y",
        "w" * 10_000,
        "\n" * 4097,
        "a" * 4095 + "\ud83d" + "b" * 10,
        "word " * 3000,
        "가" * 5000,
        "क्षि" * 2000,
    ],
)
def test_every_part_keeps_the_limit_and_nothing_is_lost(text: str) -> None:
    parts = split(text, 4096)
    assert "".join(parts) == text
    assert all(parts)
    assert all(len(part) <= units(part) <= 4096 for part in parts)


def test_emoji_are_counted_as_the_two_units_they_take() -> None:
    assert [len(part) for part in split("😀" * 5000, 4096)] == [2048, 2048, 904]


@pytest.mark.parametrize(
    ("grapheme", "filler"),
    [
        (FAMILY, 4090),
        (FLAG, 4094),
        ("e\u0301", 4095),
        ("👍🏽", 4094),
        ("🏴\U000e0067\U000e0062\U000e007f", 4092),
        ("\r\n", 4095),
        ("क्षि", 4094),
        ("\u1100\u1161\u11a8", 4094),
        ("กำ", 4095),
        ("❤\ufe0f", 4095),
        ("\ud83d\ude00", 4095),
    ],
)
def test_a_grapheme_at_the_cut_stays_whole(grapheme: str, filler: int) -> None:
    first, second = split("x" * filler + grapheme + "yz", 4096)
    assert first == "x" * filler
    assert second == grapheme + "yz"


def test_flags_are_not_paired_across_the_cut() -> None:
    for part in split("x" + FLAG * 10, 10):
        assert part.strip("x").count("🇩") == part.count("🇪")


def test_a_grapheme_longer_than_the_limit_is_cut_and_the_function_ends() -> None:
    text = "a" + "\u0301" * 300
    assert [len(part) for part in split(text, 100)] == [100, 100, 100, 1]


def test_an_emoji_that_alone_exceeds_the_limit_is_not_halved() -> None:
    assert split("a😀b", 1) == ("a", "😀", "b")


def test_cuts_prefer_paragraphs_then_lines_then_words() -> None:
    assert split("one two\n\nthree\nfour five", 18) == ("one two\n\n", "three\nfour five")
    assert split("three\nfour five six", 10) == ("three\n", "four five ", "six")
    assert split("alpha beta gamma", 12) == ("alpha beta ", "gamma")


def test_nothing_to_split() -> None:
    assert split("", 10) == ()
    assert split("short", 10) == ("short",)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        split("text", 0)


ANY_TEXT = st.text(
    st.one_of(
        st.sampled_from(" \n\r\u200d\u0301😀👨🇩🇪가가\u094dक\ud83d\udc00"),
        st.characters(),
    ),
    max_size=200,
)


@given(ANY_TEXT, st.integers(2, 40))
def test_any_text_comes_out_whole_within_any_limit(text: str, limit: int) -> None:
    parts = split(text, limit)
    assert "".join(parts) == text
    assert all(0 < units(part) <= limit for part in parts)
