"""Twenty-four tools of ordinary size, for the daemon under measurement; none is ever called."""

from __future__ import annotations

from collections.abc import Sequence

from teaagentd.abc import Tool, ToolContext
from teaagentd.types import JsonObject, ToolSpec

COUNT = 24
POINTS = {"teaagentd.tools": {"bench": "tests.bench.plugin:tools"}}

_ABOUT = (
    "Look something up in the archive of letter {n}, by its words and the days between which it "
    "was written. Returns the best matches with their titles, dates and first lines, newest first."
)


class Archive:
    """A tool with the parameters of a typical search."""

    timeout_s: float | None = None

    def __init__(self, number: int) -> None:
        text: JsonObject = {"type": "string", "description": "The words to look for, in any order."}
        day: JsonObject = {
            "type": "string",
            "description": "A day as YYYY-MM-DD; left out, it is open.",
        }
        count: JsonObject = {
            "type": "integer",
            "minimum": 1,
            "maximum": 50,
            "description": "Most matches.",
        }
        self.spec = ToolSpec(
            name=f"archive_{number:02}",
            description=_ABOUT.format(n=number),
            parameters={
                "type": "object",
                "properties": {"words": text, "since": day, "until": day, "count": count},
                "required": ["words"],
            },
        )

    async def run(self, arguments: JsonObject, context: ToolContext) -> str:
        return "nothing found"


def tools() -> Sequence[Tool]:
    return tuple(Archive(number) for number in range(1, COUNT + 1))
