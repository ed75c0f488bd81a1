"""Thinking that a server leaves in the text, told from what is said to the user.

Models write it between tags; their servers should take it out, and many do not: the opening tag
may be missing (it was in the prompt), the closing one too, and both may be split over chunks.
"""

from __future__ import annotations

import re

from teaagentd.transcript import clean_text

_NAMES = ("think", "thinking", "thought")
_TAG = re.compile(rf"<(/?)(?:{'|'.join(_NAMES)})\s?>", re.IGNORECASE)
_BEGUN = re.compile(r"</?([a-z]{0,8})\s?\Z", re.IGNORECASE)
"""The end of a chunk that may be the beginning of a tag."""
_LONGEST = len("</thinking >")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_HEAD = 8
_HIGH_SURROGATE = re.compile("[\ud800-\udbff]\\Z")


class Spoken:
    """The text of one reply, as it is said: whole characters, and without its thinking."""

    def __init__(self, *, prefilled: bool = False) -> None:
        self.thoughts = Thoughts(prefilled=prefilled)
        self._carry = ""

    def say(self, text: str) -> str:
        """What of `text` can be shown now, without broken surrogates; half a pair waits for its
        other half."""
        text = self._carry + text
        self._carry = ""
        if text and not text.isascii():
            if _HIGH_SURROGATE.search(text):
                text, self._carry = text[:-1], text[-1]
            text = clean_text(text)
        return self.thoughts.feed(text) if text else ""

    def end(self, *, calls: bool) -> str:
        """The text that was still held back; called once. See `Thoughts.end`."""
        text, self._carry = clean_text(self._carry), ""
        return self.thoughts.feed(text) + self.thoughts.end(calls=calls)


class Thoughts:
    """One reply, fed in order. Streamed and whole replies go through here alike, so what is stored
    is what was shown.

    A block begins at the start of a line, outside code; blocks may be nested. A closing tag that
    was never opened makes all before it thinking. A block that is not closed is given out at the
    end when nothing else was said, and put back where it stood when something was.
    """

    def __init__(self, *, prefilled: bool = False) -> None:
        """`prefilled`: the reply begins inside a block whose tag was in the prompt."""
        self.unopened = prefilled
        """Whether there was a closing tag that nothing had opened."""
        self.restated = False
        """Whether text was given out that turned out to be thinking."""
        self._said: list[str] = []
        self._thought: list[str] = []
        self._block: list[str] = []
        self._depth = int(prefilled)
        self._opened_by = ""
        self._opened_before = prefilled
        self._held = ""
        self._trim = True
        self._first = ""
        """The first character of what was said."""
        self._line = _Line()

    @property
    def said(self) -> str:
        return "".join(self._said)

    @property
    def thought(self) -> str:
        return "".join(self._thought)

    def feed(self, text: str) -> str:
        """Take the next piece; returns what of it can be shown now."""
        if not self._depth and not self._held and "<" not in text:
            return self._say(text)
        text, self._held = self._held + text, ""
        shown, at = "", 0
        while tag := _TAG.search(text, at):
            shown += self._put(text[at : tag.start()])
            shown += self._take(tag)
            at = tag.end()
        rest = text[at:]
        begun = _BEGUN.search(rest, max(0, len(rest) - _LONGEST))
        if begun is not None and any(name.startswith(begun[1].lower()) for name in _NAMES):
            self._held, rest = rest[begun.start() :], rest[: begun.start()]
        return shown + self._put(rest)

    def end(self, *, calls: bool) -> str:
        """What can be shown now that nothing more comes. With `calls` an unclosed block is
        thinking: the reply has something to do without it."""
        held, self._held = self._held, ""
        shown = self._put(held)
        if not self._depth:
            return shown
        self._depth = 0
        if calls:
            self._thought.extend(self._block)
            return shown
        block, tag = "".join(self._block), self._opened_by
        self._block.clear()
        self.unopened = False
        return self._say(tag + block if self.said.strip() else block)

    def _put(self, text: str) -> str:
        if self._depth:
            if text:
                self._block.append(text)
            return ""
        return self._say(text)

    def _say(self, text: str) -> str:
        if self._trim:
            text = text.lstrip() if self._opened_before else text
            self._trim = not text.strip()
        if text:
            self._first = self._first or text.lstrip()[:1]
            self._said.append(text)
            self._line.add(text)
        return text

    def _take(self, tag: re.Match[str]) -> str:
        """One tag, and what can be shown because of it."""
        closing = bool(tag[1])
        if self._depth:
            self._in_block(tag[0], closing=closing)
            return ""
        if self._line.in_code:
            return self._say(tag[0])
        if closing:
            return self._close_unopened(tag[0])
        if not self._line.blank:
            return self._say(tag[0])
        self._depth, self._opened_by, self._opened_before = 1, tag[0], True
        return ""

    def _in_block(self, tag: str, *, closing: bool) -> None:
        if self._block and self._block[-1].endswith("`"):
            self._block.append(tag)
            return
        if self.unopened and not closing and not any(map(str.strip, self._block)):
            # It says itself what we had put before it.
            self.unopened = False
            return
        self._depth += -1 if closing else 1
        if self._depth:
            self._block.append(tag)
        else:
            self._thought.extend(self._block)
            self._block.clear()

    def _close_unopened(self, tag: str) -> str:
        if self._first in ("{", "["):
            # A decision in JSON: the tag is a word in one of its strings.
            return self._say(tag)
        if not self._opened_before:
            said, self._first = self.said, ""
            self._thought.append(said)
            self._said.clear()
            self._line = _Line()
            self._trim = self._opened_before = self.unopened = True
            self.restated = bool(said)
        return ""


class _Line:
    """Where on its line, and in which code, the text stands. Of bounded size."""

    def __init__(self) -> None:
        self.blank = True
        self._fence = ""
        self._head = ""
        self._ticks = 0

    @property
    def in_code(self) -> bool:
        return bool(self._fence) or self._ticks % 2 == 1 or _FENCE.match(self._head) is not None

    def add(self, text: str) -> None:
        if "\n" in text:
            *ended, text = text.split("\n")
            for part in ended:
                self._go_on(part)
                self._end()
        self._go_on(text)

    def _go_on(self, text: str) -> None:
        if len(self._head) < _HEAD:
            self._head += text[:_HEAD]
        self._ticks += text.count("`")
        if self.blank and text.strip():
            self.blank = False

    def _end(self) -> None:
        if (found := _FENCE.match(self._head)) is not None:
            if not self._fence:
                self._fence = found[1]
            elif self._fence == found[1]:
                self._fence = ""
        self.blank, self._head, self._ticks = True, "", 0
