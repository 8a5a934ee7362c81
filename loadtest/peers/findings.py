"""JSON document of a comparison, and figures derived from it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from loadtest.generator.latencies import Spread
from loadtest.peers.contestants import ALL, OURS, Contestant
from loadtest.reports.environment import Environment

Cdf = tuple[tuple[float, float], ...]
CDF_POINTS = 200


class Probe(msgspec.Struct, frozen=True):
    """Result of one level on one server."""

    peer: str
    round: int
    streams: int
    sustained: bool
    chunk_latency_ms: Spread | None
    compared: int = 0
    mismatched: int = 0
    failed: int = 0
    refused: int = 0
    unanswered: int = 0
    generator_cores: float = 0.0
    server_cores: dict[str, float] = {}  # by process name
    batch_sizes: dict[int, float] = {}  # number of batches by size, or by the upper edge of a size class
    cdf: Cdf = ()  # only for the common level
    searched: bool = True  # a level of the search, not the common one
    problem: str = ""  # why it was not measured

    @property
    def mean_batch(self) -> float | None:
        """Mean rows of a batch."""
        batches = sum(self.batch_sizes.values())
        rows = sum(size * count for size, count in self.batch_sizes.items())
        return rows / batches if batches else None


class Findings(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    objective_ms: float
    seconds: float
    stream_s: float
    common: int
    versions: dict[str, str]
    environment: Environment
    probes: tuple[Probe, ...]

    def peers(self) -> list[Contestant]:
        """Return the measured servers, in the order of the comparison."""
        measured = {probe.peer for probe in self.probes}
        return [contestant for contestant in ALL if contestant.name in measured]

    def of(self, peer: str) -> list[Probe]:
        """Return the levels of one server."""
        return [probe for probe in self.probes if probe.peer == peer]

    def by_round(self, peer: str) -> list[int]:
        """Return the highest number of sustained streams, by round."""
        best: dict[int, int] = {}
        for probe in self.of(peer):
            best[probe.round] = max(best.get(probe.round, 0), probe.streams if probe.sustained else 0)
        return [best[number] for number in sorted(best)]

    def sustained(self, peer: str) -> float | None:
        """Return the median of the rounds; None if it was not measured."""
        rounds = self.by_round(peer)
        return statistics.median(rounds) if rounds else None

    def ratio(self, peer: str) -> float | None:
        """Return the ratio of our streams to its; ours are those with the same model."""
        name = next((one.counterpart for one in ALL if one.name == peer), OURS)
        ours, theirs = self.sustained(name), self.sustained(peer)
        return ours / theirs if ours is not None and theirs else None

    def ratios(self, peer: str, other: str) -> list[float]:
        """Return the ratio of one server's streams to another's in each round in which the other sustained any."""
        pairs = zip(self.by_round(peer), self.by_round(other), strict=False)  # rounds are numbered from 1 for each
        return [streams / others for streams, others in pairs if others]

    def edge(self, peer: str) -> Probe | None:
        """Return its level nearest to the median of sustained streams."""
        middle = self.sustained(peer)
        good = [probe for probe in self.of(peer) if probe.sustained and probe.searched]
        return min(good, key=lambda probe: abs(probe.streams - (middle or 0.0)), default=None)


def thinned(cdf: Cdf) -> Cdf:
    """Return a distribution thinned to about `CDF_POINTS` points, including the last one."""
    every = max(1, len(cdf) // CDF_POINTS)
    return (*cdf[:-1:every], *cdf[-1:])


def next_round(probes: Sequence[Probe], peer: str) -> int:
    """Return the number of the next round."""
    return 1 + max((probe.round for probe in probes if probe.peer == peer), default=0)
