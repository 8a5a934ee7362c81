"""Recordings of a ruler with their texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import BadManifest
from loadtest.generator.recordings import read_manifest
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_client.errors import AudioError
from tutti_asr_client.files.audio import read_pcm

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Spoken:
    """One recording, (S,) int16 at 16 kHz, and its reference text."""

    path: Path
    samples: NDArray[np.int16]
    text: str
    language: str = ""


def read(manifest: Path | None, at_most: int, seed: int) -> list[Spoken]:
    """Return up to `at_most` recordings of a manifest, chosen at random. Raises: BadManifest."""
    lines = read_manifest(manifest)
    if len(lines) > at_most:
        lines = random.Random(seed).sample(lines, at_most)
    try:
        return [
            Spoken(Path(line.audio), read_pcm(Path(line.audio), SAMPLE_RATE).astype(np.int16), line.text, line.language)
            for line in lines
        ]
    except AudioError as error:
        raise BadManifest(str(error)) from error


class WithSpeech(Generic[Prepared]):
    """A ruler's recordings in which silero finds speech, as they are played; the others are left out."""

    def __init__(self, found: Sequence[Prepared | None]) -> None:
        """`found`: by recording, None without speech. Raises: BadManifest if there is none with speech."""
        self.played = [each for each in found if each is not None]
        if not self.played:
            raise BadManifest("silero found no speech in these recordings; use others")
        self._silent = len(found) - len(self.played)

    @property
    def recordings(self) -> int:
        """Number of recordings with speech."""
        return len(self.played)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the report."""
        return (f"{self._silent} recordings were left out: silero found no speech in them",) if self._silent else ()


def endless(count: int, rng: random.Random) -> Iterator[int]:
    """Yield the numbers below `count` in random order, again and again."""
    while True:
        yield from rng.sample(range(count), count)
