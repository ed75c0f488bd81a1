"""Where things lie in a home, and how the home is found. Cheap to import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from teaagentd.errors import ConfigError

HOME_VARIABLE = "TEAAGENTD_HOME"
DEFAULT_HOME = "~/.teaagentd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """One assistant's folder. Nothing in it is read by merely naming it."""

    root: Path

    @property
    def config_file(self) -> Path:
        return self.root / "config.toml"

    @property
    def state_file(self) -> Path:
        return self.root / "state.db"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def files(self) -> Path:
        """What came with messages."""
        return self.root / "files"

    @property
    def run_folder(self) -> Path:
        return self.root / "run"

    @property
    def socket(self) -> Path:
        return self.run_folder / "teaagentd.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def log_file(self) -> Path:
        """Where `chat` and `ask` log when they are the daemon: their terminal is in use."""
        return self.logs / "teaagentd.log"

    @property
    def terminal(self) -> Path:
        """What the terminal remembers: lines typed, replies shown."""
        return self.root / "terminal"

    def create(self) -> None:
        """Make the folders that are missing, closed to others. Raises `ConfigError`."""
        for folder in (self.root, self.run_folder, self.logs, self.workspace, self.terminal):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"{folder}: cannot make this folder ({error.strerror}); nothing was changed. "
                    f"Mend its parent, or choose another home with --home or {HOME_VARIABLE}"
                ) from None


def find_home(option: str | None, environ: Mapping[str, str] = os.environ) -> Home:
    """The home: `option` if given, else `TEAAGENTD_HOME` if not empty, else `~/.teaagentd`."""
    return Home(
        root=Path(option or environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()
    )
