"""`POST /v1/messages`, and `/v1/inbox`: what is accepted, and what is refused how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from teaagentd.errors import ProviderUnavailable
from teaagentd.testing import MemoryChannel, ScriptedModel
from teaagentd.types import NewTurn if False else SessionKey
