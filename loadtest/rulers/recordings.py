"""Recordings of a ruler with their texts."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import BadManifest
from loadtest.generator.recordings import read_manifest
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.rulers.playing import Played, Take
from loadtest.rulers.report import Figure
from tutti_asr_client.address import QueryValue
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


class PlayedRecordings(ABC, Generic[Prepared]):
    """A ruler with its recordings as they are played; those that cannot be measured are left out."""

    path = "/v1/listen"
    query: Mapping[str, QueryValue]
    """Query of each connection."""
    useless = "silero found no speech in these recordings; use others"
    """Message where none is left."""

    def __init__(self, prepared: Sequence[Prepared | None]) -> None:
        """`prepared`: by recording, None for one that is left out. Raises: BadManifest if none is left."""
        self.played = [recording for recording in prepared if recording is not None]
        if not self.played:
            raise BadManifest(self.useless)
        self.left_out = len(prepared) - len(self.played)

    @property
    def recordings(self) -> int:
        """Number of distinct recordings that are played."""
        return len(self.played)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the report."""
        return (f"{self.left_out} recordings were left out: silero found no speech in them",) if self.left_out else ()

    @abstractmethod
    def take(self, recording: Prepared) -> Take:
        """Return a take of a recording."""

    @abstractmethod
    def figures(self, played: Played) -> tuple[Figure, ...]:
        """Return the figures of a level."""

    def takes(self, order: Iterator[int]) -> Iterator[Take]:
        """Yield takes of the recordings in this order."""
        for number in order:
            yield self.take(self.played[number])


def endless(count: int, rng: random.Random) -> Iterator[int]:
    """Yield the numbers below `count` in random order, again and again."""
    while True:
        yield from rng.sample(range(count), count)
