"""The servers of the comparison, with command line and settings, and their results as a JSON document. Pure.

sherpa-onnx has the settings that performed best on two cores shared with the load generator; other settings that were
tried can be selected by name.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadtest.errors import BadSettings, PeerMissing
from loadtest.generator.latencies import Spread
from loadtest.reports.environment import Environment

OURS = "tutti"
PUBLISHED = "-published"  # in names of servers with the published model of `--onnx`


@dataclass(frozen=True, slots=True)
class Contestant:
    """One server with its settings."""

    name: str
    title: str
    first: int  # streams at the start of the search
    command: tuple[str, ...]  # `--port N` is added

    @property
    def published(self) -> bool:
        """Whether it serves the published model of `--onnx`."""
        return PUBLISHED in self.name

    @property
    def counterpart(self) -> str:
        """Name of our server with the same model."""
        return OURS + PUBLISHED if self.published else OURS


_SERVE = (sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1")
_TUTTI = (*_SERVE, "--decoder", "greedy", "--max-streams", "1024")
_OURS_FP32 = (*_TUTTI, "--model", "{onnx}", "--precision", "fp32")
_OURS_INT8 = (*_TUTTI, "--model", "{onnx}", "--precision", "int8")
_SHERPA = (sys.executable, "-m", "tutti_asr_lab.benchmarks.peers.sherpa_server", "--folder")
_FP32, _INT8 = (*_SHERPA, "{onnx}", "--published"), (*_SHERPA, "{int8}", "--published")
_TWO = ("--threads", "2")
_PUBLISHED = "the same published model"
ALL = (
    Contestant(OURS, "tutti, greedy", 400, _TUTTI),
    Contestant("sherpa-fp32", "sherpa-onnx, fp32", 250, (*_SHERPA, "{onnx}")),
    Contestant("sherpa-int8", "sherpa-onnx, int8", 250, (*_SHERPA, "{onnx}", "--model", "model.int8.onnx")),
    Contestant("sherpa-2", "sherpa-onnx, fp32, 2 threads", 200, (*_SHERPA, "{onnx}", *_TWO)),
    Contestant("tutti-published", "tutti, a published model, fp32", 10, _OURS_FP32),
    Contestant("tutti-published-int8", f"tutti, {_PUBLISHED}, int8 by tutti quantize", 60, _OURS_INT8),
    Contestant(
        "tutti-published-int8-2", f"tutti, {_PUBLISHED}, int8 by tutti quantize, 2 threads", 60, (*_OURS_INT8, *_TWO)
    ),
    Contestant("sherpa-published", f"sherpa-onnx, {_PUBLISHED}, fp32", 10, _FP32),
    Contestant("sherpa-published-2", f"sherpa-onnx, {_PUBLISHED}, fp32, 2 threads", 10, (*_FP32, *_TWO)),
    Contestant("sherpa-published-int8", f"sherpa-onnx, {_PUBLISHED}, dynamic int8", 10, _INT8),
    Contestant("sherpa-published-int8-2", f"sherpa-onnx, {_PUBLISHED}, dynamic int8, 2 threads", 10, (*_INT8, *_TWO)),
)
DEFAULT = (OURS, "sherpa-fp32", "sherpa-int8")


def chosen(names: str) -> tuple[Contestant, ...]:
    """Return the servers of a list with commas; by default the default ones. Raises: BadSettings, PeerMissing."""
    by_name = {contestant.name: contestant for contestant in ALL}
    wanted = names.split(",") if names else DEFAULT
    if unknown := [name for name in wanted if name not in by_name]:
        raise BadSettings(f"--peers {', '.join(unknown)}: must be one of {', '.join(by_name)}")
    if any(name.startswith("sherpa") for name in wanted) and importlib.util.find_spec("sherpa_onnx") is None:
        raise PeerMissing("sherpa_onnx not installed: pip install 'tutti-asr[onnx]'")
    return tuple(by_name[name] for name in wanted)


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
