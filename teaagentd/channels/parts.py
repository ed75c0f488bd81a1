"""split: a text cut into parts that a channel can carry."""

from __future__ import annotations

import unicodedata

_ZERO_WIDTH_JOINER = "\u200d"
_VIRAMA_CLASS = 9


def split(text: str, limit: int) -> tuple[str, ...]:
    """`text` as parts of at most `limit` characters each, counted as UTF-16 units, so that
    channels that count code points and those that count UTF-16 are both satisfied.

    Joined, the parts are `text` again; none is empty. Cuts fall after a paragraph, else a line,
    else a word, else between graphemes; a grapheme longer than `limit` is cut between code
    points. Only a code point that alone exceeds the limit (an emoji, `limit` 1) makes a part
    that is too long.
    """
    if limit < 1:
        raise ValueError("a part has at least one character")
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = _furthest(text, start, limit)
        if end < len(text):
            end = _border(text, start, end)
        parts.append(text[start:end])
        start = end
    return tuple(parts)


def _furthest(text: str, start: int, limit: int) -> int:
    """The end of the longest slice from `start` within `limit`, of one character at least."""
    window = text[start : start + limit]
    if window.isascii() or max(window) <= "\uffff":
        return start + len(window)
    units = 0
    for offset, character in enumerate(window):
        units += 2 if character > "\uffff" else 1
        if units > limit:
            return start + max(offset, 1)
    return start + len(window)


def _border(text: str, start: int, end: int) -> int:
    """The best place to cut `text` after `start` and not after `end`."""
    earliest = start + (end - start) // 3
    for separator in ("\n\n", "\n", " "):
        found = text.rfind(separator, earliest, end)
        if found >= 0 and not _joined(text, start, found + len(separator)):
            return found + len(separator)
    cut = end
    while cut > start and _joined(text, start, cut):
        cut -= 1
    return cut if cut > start else end


def _joined(text: str, start: int, cut: int) -> bool:
    """Whether a grapheme spans `cut`. Follows Unicode's UAX 29 and, where that asks for tables
    that Python lacks, joins rather than parts."""
    before, after = text[cut - 1], text[cut]
    if before.isascii() and after.isascii():
        return before == "\r" and after == "\n"
    if _extends(after):
        return before not in "\r\n"
    if before == _ZERO_WIDTH_JOINER:
        return _is_symbol(after) and _is_symbol(_base(text, start, cut - 1))
    if _is_flag_half(before) and _is_flag_half(after):
        first = cut - 1
        while first > start and _is_flag_half(text[first - 1]):
            first -= 1
        return (cut - first) % 2 == 1
    if unicodedata.combining(before) == _VIRAMA_CLASS:
        return unicodedata.category(after) == "Lo"
    if "\ud800" <= before <= "\udbff":
        return "\udc00" <= after <= "\udfff"
    return _is_leading_jamo(before) and ("\uac00" <= after <= "\ud7a3" or _is_leading_jamo(after))


def _extends(character: str) -> bool:
    """Whether `character` belongs to the one before it: marks, joiners, skin tones, tags,
    Hangul vowels and finals, the Thai and Lao vowel AM, halfwidth voicing marks."""
    return (
        unicodedata.category(character).startswith("M")
        or character in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7fb"
    )


def _base(text: str, start: int, position: int) -> str:
    while position > start and _extends(text[position]):
        position -= 1
    return text[position]


def _is_symbol(character: str) -> bool:
    """True of every emoji that joiners are used with, of which some are arrows."""
    return unicodedata.category(character) in ("So", "Sm")


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_leading_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u115f" or "\ua960" <= character <= "\ua97c"
