"""The command that messages advise where an optional package is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from model import errors


def test_a_checkout_is_installed_anew_with_the_extra() -> None:
    assert errors.install_hint("torch") == "pip install -e '.[torch]'"


def test_an_installed_wheel_is_named_as_the_index_knows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    assert errors.install_hint("torch,otel") == "pip install 'tutti-asr[torch,otel]'"
