"""The command in messages about a missing optional package."""

from __future__ import annotations

from pathlib import Path

import pytest

from model import errors


def test_a_checkout_is_reinstalled_with_the_extra() -> None:
    assert errors.install_hint("torch") == "pip install -e '.[torch]'"


def test_an_installed_wheel_has_its_name_in_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    assert errors.install_hint("torch,otel") == "pip install 'tutti-asr[torch,otel]'"
