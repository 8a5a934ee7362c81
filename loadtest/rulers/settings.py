"""Settings of a ruler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loadtest.errors import BadSettings
from loadtest.generator.settings import check_streams

STREAMS = (1, 100, 300)
RECORDINGS = 100  # Source: the number of samples of pipecat's stt-benchmark
MAX_RECORDINGS = 100_000


class Ruler(StrEnum):
    """What is measured."""

    TTFS = "ttfs"
    WORD_DELAY = "word-delay"
    TURNS = "turns"
    EARLY_END = "early-end"


@dataclass(frozen=True, slots=True)
class RulerSettings:
    """A ruler at consecutive levels of live streams, each with at least `recordings` measured ones."""

    url: str
    ruler: Ruler
    streams: tuple[int, ...] = STREAMS
    recordings: int = RECORDINGS
    manifest: Path | None = None  # None: the shipped recordings
    per_connection: int = 1  # recordings on each connection
    seed: int = 1
    api_key: str | None = None
    explain: bool = False  # also the parts of each time to final

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        check_streams(self.streams)
        if not 1 <= self.recordings <= MAX_RECORDINGS:
            raise BadSettings(f"recordings {self.recordings}: must be from 1 to {MAX_RECORDINGS}")
        if self.per_connection < 1:
            raise BadSettings(f"per_connection {self.per_connection}: must be at least 1")
        for option, used in (("--explain", self.explain), ("--per-connection", self.per_connection > 1)):
            if used and self.ruler is not Ruler.TTFS:
                raise BadSettings(f"{option}: needs --ruler {Ruler.TTFS}, not {self.ruler}")
