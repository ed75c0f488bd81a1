"""A personal assistant that runs as a daemon: a durable bus, one live turn per conversation.

The names below are what channels, tools, providers and programs build on. Each is imported when
it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teaagentd.abc import Channel, LLMAdapter, MemoryEngine, Tool, ToolContext
    from teaagentd.agent.engine import ModelDecisionEngine
    from teaagentd.agent.runner import AgentRunner
    from teaagentd.agent.toolbox import Toolbox, ToolRegistry
    from teaagentd.core.activity import ActivityFeed
    from teaagentd.core.bus import MessageBus
    from teaagentd.core.context import ContextBuilder
    from teaagentd.core.dispatcher import Dispatcher
    from teaagentd.core.loop import Loop
    from teaagentd.store import Store
    from teaagentd.types import (
        Activity,
        Address,
        InboundMessage,
        OutboundMessage,
        Phase,
        SessionKey,
    )

__version__ = "0.1.0"

_HOMES = {
    "Activity": "types",
    "ActivityFeed": "core.activity",
    "Address": "types",
    "AgentRunner": "agent.runner",
    "Channel": "abc",
    "ContextBuilder": "core.context",
    "Dispatcher": "core.dispatcher",
    "InboundMessage": "types",
    "LLMAdapter": "abc",
    "Loop": "core.loop",
    "MemoryEngine": "abc",
    "MessageBus": "core.bus",
    "ModelDecisionEngine": "agent.engine",
    "OutboundMessage": "types",
    "Phase": "types",
    "SessionKey": "types",
    "Store": "store",
    "Tool": "abc",
    "ToolContext": "abc",
    "ToolRegistry": "agent.toolbox",
    "Toolbox": "agent.toolbox",
}

__all__ = [
    "Activity",
    "ActivityFeed",
    "Address",
    "AgentRunner",
    "Channel",
    "ContextBuilder",
    "Dispatcher",
    "InboundMessage",
    "LLMAdapter",
    "Loop",
    "MemoryEngine",
    "MessageBus",
    "ModelDecisionEngine",
    "OutboundMessage",
    "Phase",
    "SessionKey",
    "Store",
    "Tool",
    "ToolContext",
    "ToolRegistry",
    "Toolbox",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'teaagentd' has no attribute {name!r}")
    found: object = getattr(import_module(f"teaagentd.{home}"), name)
    globals()[name] = found
    return found
