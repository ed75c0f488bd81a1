"""The names of the commit points: every transaction that writes has one of them."""

from __future__ import annotations

from typing import Final

COMMITS: Final = (
    "T0.accept",
    "T0.retry",
    "T1.begin",
    "T1.resume",
    "T1.park",
    "T2.decide",
    "T3.start",
    "T3.finish",
    "T4.fold",
    "T4.close_or_fold",
    "T5.close",
    "T6.freeze",
    "T6.start",
    "T6.finish",
    "T6.refuse",
    "T6.delay",
    "T7.command",
    "T7.revoke",
    "T8.compact",
    "B1.reserve",
    "B2.settle",
    "B3.resolve",
    "A1.drop_row",
    "A2.retry_letter",
    "A3.drop_letter",
    "A4.delete_session",
    "A5.erase",
    "A6.raise_alert",
    "A7.clear_alert",
    "A8.sweep",
    "A9.choose",
)
"""In the order of a message's life, then the books, then what an operator does with what is kept.
The writer refuses any other name."""
