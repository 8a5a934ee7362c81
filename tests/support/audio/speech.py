"""Real speech for tests: the shipped samples, and the development set where it stands beside the checkout."""

from pathlib import Path

from model.recordings import Utterance, read_manifest
from tests.support.needs import missing

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "model" / "samples" / "samples.jsonl"
DEVELOPMENT = ROOT.parent / "shared" / "data" / "dev.jsonl"


def samples() -> list[Utterance]:
    """The recordings that come with the project."""
    return read_manifest(SAMPLES)


def development() -> list[Utterance]:
    """The development set; without it the test is skipped, in CI it fails."""
    if not DEVELOPMENT.exists():
        missing(f"no development set at {DEVELOPMENT.relative_to(ROOT.parent)} beside the checkout")
    return read_manifest(DEVELOPMENT)
