"""Real speech for tests: the shipped samples, and the development set where it stands beside the checkout."""

import os
import shutil
from pathlib import Path

import pytest

from model.manifest import Utterance, read_manifest

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "model" / "samples" / "samples.jsonl"
DEVELOPMENT = ROOT.parent / "shared" / "data" / "dev.jsonl"


def samples() -> list[Utterance]:
    """The recordings that come with the project."""
    return read_manifest(SAMPLES)


def development() -> list[Utterance]:
    """The development set; without it the test is skipped, in CI it fails."""
    if not DEVELOPMENT.exists():
        message = f"no development set at {DEVELOPMENT.relative_to(ROOT.parent)} beside the checkout"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return read_manifest(DEVELOPMENT)


def need_programs(*names: str) -> None:
    """Skip the test where one of these programs is missing; in CI it fails."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
