"""The store: one SQLite file for each home, written by whole commit points."""

from teaagentd.store.lock import HomeLock
from teaagentd.store.store import Store

__all__ = ["HomeLock", "Store"]
