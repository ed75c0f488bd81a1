"""What the package itself offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import teaagentd


@pytest.mark.parametrize("name", teaagentd.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(teaagentd, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = teaagentd.nothing_like_it


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import sys, teaagentd; print([m for m in sys.modules if m.startswith('teaagentd.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
