"""Configuration: what can be set, where each value comes from, and what is refused.

A value comes from `TEAAGENTD_<SECTION>__<KEY>`, else from `config.toml`, else it is the default.
A file that cannot be read, or that says what it must not, is an error that names itself; it
never becomes a default and is never saved over.
"""

from teaagentd.config.load import Loaded, load_settings
from teaagentd.config.settings import (
    AgentSection,
    BusSection,
    LoggingSection,
    ProviderSection,
    Settings,
    ShutdownSection,
    ToolsSection,
)

__all__ = [
    "AgentSection",
    "BusSection",
    "Loaded",
    "LoggingSection",
    "ProviderSection",
    "Settings",
    "ShutdownSection",
    "ToolsSection",
    "load_settings",
]
