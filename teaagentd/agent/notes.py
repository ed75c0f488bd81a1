"""Notes: rendered once beside a message, they tell the program's words from the sender's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from teaagentd.transcript import one_line

MAX_MEMORY = 500
"""Characters of one memory in a note."""
MAX_NAME = 80
"""Characters of a name or a place in a note."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def bracketed(facts: Sequence[str], memories: Sequence[str], others: Sequence[str]) -> str:
    """The one envelope of a note: facts, who else reads along, what is remembered. Its values
    hold no square brackets, so it ends with its first `]`."""
    line = ", ".join(facts)
    if others:
        line += ", also read by " + ", ".join(one_line(other, MAX_NAME) for other in others)
    if memories:
        line += "\nremembered:" + "".join(f"\n- {one_line(m, MAX_MEMORY)}" for m in memories)
    return f"[{line}]"


def spoken_time(at_ms: int, zone: tzinfo | None) -> str:
    """Day, date, time and offset of a moment in `zone`; None is the machine's own."""
    local = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
    offset = local.strftime("%z")
    name = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"
    known = local.tzname() or ""
    if known.isalpha() and known != "UTC":
        name = f"{known} {name}"
    return f"{_DAYS[local.weekday()]} {local:%Y-%m-%d %H:%M} {name}"
