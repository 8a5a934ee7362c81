"""Real speech for tests: the shipped samples, and the development set if it is next to the checkout."""

from pathlib import Path

from model.recordings import Utterance, read_manifest
from tests.support.needs import missing

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "model" / "samples" / "samples.jsonl"
DEVELOPMENT = ROOT.parent / "shared" / "data" / "dev.jsonl"


def samples() -> list[Utterance]:
    """Return the recordings shipped with the project."""
    return read_manifest(SAMPLES)


def development() -> list[Utterance]:
    """Return the development set; without it the test is skipped, and in CI it fails."""
    if not DEVELOPMENT.exists():
        missing(f"no development set at {DEVELOPMENT.relative_to(ROOT.parent)} next to the checkout")
    return read_manifest(DEVELOPMENT)
