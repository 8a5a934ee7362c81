"""Rounds of the comparison: servers in turn, each level by level. One server runs at a time.

A search for the highest number of streams that a server sustains goes up by a factor, or down by growing ones, until
the result lies between a good and a bad level, then narrows the interval.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest import served
from loadtest.errors import LoadTestError, ServerNotReady
from loadtest.generator.latencies import Spread
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure
from tutti_asr_client.errors import ClientError
from tutti_asr_lab import processes
from tutti_asr_lab.benchmarks.peers.contestants import Contestant, Probe, next_round, thinned

WARMUP_S = 2.0
DRAIN_S = 5.0
"""Wait after a level; above capacity results come late or never, so a longer wait is useless."""

END_EARLIER_S = 0.1
"""Time before the end of a level at which the processor time is read, since nothing runs alongside after it."""

RECORDINGS = 8
"""Number of distinct streams; each is first recognized without load, at 10 ms per step on the slowest server."""

AGAIN = 1.15
"""Step of later rounds, which start at the result of the earlier ones."""

AGAIN_LEVELS = 8
CLOSE = 1.08
"""Relative distance of good and bad level at which the search ends; rounds vary by as much."""

MOST = 2_048


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the comparison."""

    rounds: int
    seconds: float
    stream_s: float  # mean length of a stream: most end within a level, and are compared
    objective_ms: float
    common: int  # a level measured for every server in its first round
    seed: int
    onnx: Path
    int8: Path = Path()  # folder of the same published model in dynamic int8


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A ready server."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """URL for streams."""
        return f"ws://127.0.0.1:{self.port}"

    def cpu_by_name(self) -> Counter[str]:
        """Return the CPU seconds of its processes until now."""
        return processes.cpu_by_name(processes.tree(self.pid))

    def batches(self) -> dict[int, float]:
        """Return the number of batches by size until now; empty for a server without `/batches`."""
        try:
            return msgspec.json.decode(served.get(self.port, "/batches"), type=dict[int, float], strict=False)
        except (OSError, msgspec.DecodeError):
            return {}


@dataclass(slots=True)
class Search:
    """Search: get `next_level`, run it, `add` its result."""

    first: int
    factor: float = 1.5
    levels: int = 8  # maximum number of levels
    good: int = 0  # highest sustained level
    bad: int | None = None  # lowest level that was not sustained
    tried: int = 0

    def next_level(self) -> int | None:
        """Return the streams of the next level; None if the result is precise enough, or after `levels` levels."""
        if self.tried >= self.levels:
            return None
        if not self.tried:
            return self.first
        level = self._between() if self.good and self.bad is not None else self._beyond()
        return None if level in (self.good, self.bad) or not 1 <= level <= MOST else level

    def add(self, level: int, *, sustained: bool) -> None:
        """Add the result of a level."""
        self.tried += 1
        if sustained:
            self.good = max(self.good, level)
        else:
            self.bad = level if self.bad is None else min(self.bad, level)

    def _between(self) -> int:
        assert self.bad is not None
        if self.bad <= max(self.good * CLOSE, self.good + 1):
            return self.good
        return round(math.sqrt(self.good * self.bad))

    def _beyond(self) -> int:
        if self.bad is None:
            return max(self.good + 1, round(self.good * self.factor))
        return min(self.bad - 1, max(1, round(self.bad / self.factor**self.tried)))  # ever larger steps down


def run(
    plan: Plan, contestants: Sequence[Contestant], earlier: Sequence[Probe], progress: Callable[[str], None]
) -> Iterator[Probe]:
    """Measure, and yield each completed level, so that none is lost by an interruption."""
    probes = list(earlier)
    for _ in range(plan.rounds):
        for contestant in contestants:
            number = next_round(probes, contestant.name)
            progress(f"{contestant.title}, round {number}")
            for probe in _one_server(plan, contestant, number, probes):
                probes.append(probe)
                progress(f"  {line(probe)}")
                yield probe


def _one_server(plan: Plan, contestant: Contestant, number: int, before: Sequence[Probe]) -> Iterator[Probe]:
    command = [part.format(onnx=plan.onnx, int8=plan.int8) for part in contestant.command]
    best = max((p.streams for p in before if p.peer == contestant.name and p.sustained and p.searched), default=0)
    search = Search(best, factor=AGAIN, levels=AGAIN_LEVELS) if best else Search(contestant.first)
    try:
        port = served.free_port()
        with served.running([*command, "--port", str(port)], port) as process:
            server = RunningPeer(port, process.pid)
            if number == 1 and plan.common:
                yield _level(plan, contestant, number, server, plan.common, searched=False)
            while (streams := search.next_level()) is not None:
                probe = _level(plan, contestant, number, server, streams, searched=True)
                search.add(streams, sustained=probe.sustained)
                yield probe
    except ServerNotReady as error:
        yield Probe(contestant.name, number, 0, sustained=False, chunk_latency_ms=None, problem=str(error))


def _level(
    plan: Plan, contestant: Contestant, number: int, server: RunningPeer, streams: int, *, searched: bool
) -> Probe:
    settings = LoadSettings(
        url=server.url,
        streams=(streams,),
        seconds=plan.seconds,
        warmup_s=WARMUP_S,
        drain_s=DRAIN_S,
        max_recordings=RECORDINGS,
        seed=plan.seed,
        stream_s=plan.stream_s,
        long_steps=contestant.published,
    )
    batches, spent = Counter(server.batches()), CpuOfLevel(server)
    try:
        result = measure(settings, progress=lambda _: None, alongside=spent.run)
    except (LoadTestError, ClientError) as error:
        return Probe(contestant.name, number, streams, sustained=False, chunk_latency_ms=None, problem=str(error))
    if result.document.interrupted:
        raise KeyboardInterrupt
    ran = Counter(server.batches())
    ran.subtract(batches)
    (level,) = result.document.levels
    sizes = {size: float(count) for size, count in ran.items() if count > 0}
    classes = level.server.batch_sizes or {}
    return Probe(
        peer=contestant.name,
        round=number,
        streams=level.streams,
        sustained=sustained(level, plan.objective_ms),
        chunk_latency_ms=level.chunk_latency_ms,
        compared=level.compared,
        mismatched=level.mismatched,
        failed=level.failed,
        refused=level.refused,
        unanswered=level.unanswered,
        generator_cores=level.generator_cpu_cores,
        server_cores=spent.cores(plan.seconds),
        batch_sizes=sizes or {size: float(count) for size, count in classes.items()},
        cdf=() if searched else thinned(result.cdfs[0]),
        searched=searched,
    )


class CpuOfLevel:
    """Processor time of a server within the measured window: a server that is overloaded works on after it."""

    def __init__(self, server: RunningPeer) -> None:
        self._server = server
        self._before: Counter[str] = Counter()
        self._spent: Counter[str] = Counter()

    async def run(self, schedule: Schedule) -> None:
        """Read it at the beginning and at the end of the window."""
        await asyncio.sleep(max(0.0, schedule.from_s - time.perf_counter()))
        self._before = self._server.cpu_by_name()
        await asyncio.sleep(max(0.0, schedule.end_s - END_EARLIER_S - time.perf_counter()))
        self._spent = self._server.cpu_by_name()
        self._spent.subtract(self._before)

    def cores(self, seconds: float) -> dict[str, float]:
        """Return the cores that each program used in a window of `seconds`."""
        used = {name: cpu_s / (seconds - END_EARLIER_S) for name, cpu_s in self._spent.items()}
        return {name: round(cores, 3) for name, cores in used.items() if cores > 0.005}


def sustained(level: LevelReport, objective_ms: float) -> bool:
    """Whether every step has a result and p98 meets the objective. Different texts are reported separately."""
    spread = level.chunk_latency_ms
    whole = not (level.failed or level.refused or level.unanswered)
    return spread is not None and whole and spread.p98 <= objective_ms


def line(probe: Probe) -> str:
    """Return a level as one line."""
    spread: Spread | None = probe.chunk_latency_ms
    if spread is None:
        return f"{probe.streams} streams: {probe.problem}"
    cores = " ".join(f"{name} {value:.2f}" for name, value in sorted(probe.server_cores.items()))
    batch = "" if probe.mean_batch is None else f", batch {probe.mean_batch:.1f}"
    bad = f", {probe.mismatched}/{probe.compared} differ" if probe.mismatched else ""
    lost = probe.failed + probe.refused + probe.unanswered
    return (
        f"{probe.streams} streams: p50 {spread.p50:.1f} p98 {spread.p98:.1f} ms"
        f"{'' if probe.sustained else ' not sustained'}{batch}{bad}{f', {lost} lost' if lost else ''}; cores {cores}"
    )
