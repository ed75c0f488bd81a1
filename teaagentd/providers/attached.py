"""Files of a message, in every dialect: what of them is shown, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from teaagentd.transcript import one_line
from teaagentd.types import Attachment, LLMMessage, Picture, Shown

UNSEEN = "[A picture was sent here. It cannot be shown to you.]"
"""Says nothing of where it is or what it is called: a model would tell of what it has not seen."""


def pictures(message: LLMMessage, shown: Mapping[str, Shown]) -> Iterator[Picture]:
    """The pictures of `message` that are shown, in order."""
    for one in message.attachments:
        if isinstance(found := shown.get(one.path), Picture):
            yield found


def words(message: LLMMessage, shown: Mapping[str, Shown]) -> str:
    """What `message` says, with its texts, and a word for each file that is not shown."""
    texts = [message.note if message.role == "user" else None, message.content]
    texts += [_told(one, shown.get(one.path)) for one in message.attachments]
    return "\n\n".join(text for text in texts if text)


def _told(one: Attachment, shown: Shown | None) -> str | None:
    if isinstance(shown, Picture):
        return None
    if one.media_type.startswith("image/"):
        return UNSEEN
    name = one_line(one.name, 80)
    if shown is None:
        return f"[A file was sent here: {name} ({_size(one)}). It cannot be shown to you.]"
    # Framed by its digest, which it cannot hold, and so cannot end the frame.
    frame = f"file {one.path[:16]}"
    return f"[A file was sent here: {name}]\n<{frame}>\n{shown}\n</{frame}>"


def _size(one: Attachment) -> str:
    return f"{one.media_type}, {max(one.size // 1000, 1)} kB"
