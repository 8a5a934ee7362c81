"""Timing: of device work by events around graph replays, and of calls by the host's clock.

On a CPU the plain function is timed instead, so that a dry run covers all code; such times are meaningless.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from tutti_asr_lab.benchmarks.gpu.records import Values

Work = Callable[[], object]

WARM_REPLAYS = 10  # until clocks have risen and caches are filled
GROUP_US = 1_000.0  # length of a group of replays between two events, whose resolution is about 1 µs


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of times in µs."""

    median_us: float
    p10_us: float
    p90_us: float
    count: int

    def values(self, prefix: str = "") -> Values:
        """Return the values of a row."""
        return {
            f"{prefix}us": round(self.median_us, 3),
            f"{prefix}us_p10": round(self.p10_us, 3),
            f"{prefix}us_p90": round(self.p90_us, 3),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of an ascending sequence, by nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(times_us: Sequence[float]) -> Spread:
    """Return the median, 10th and 90th percentile."""
    ordered = sorted(times_us)
    return Spread(statistics.median(ordered), percentile(ordered, 0.1), percentile(ordered, 0.9), len(ordered))


def captured(work: Work, device: torch.device) -> Work:
    """Run the work once, then capture it; returns a function that replays it. On a CPU, returns the work itself.

    The first run compiles and loads kernels, which is not possible during capture.
    """
    if device.type != "cuda":
        work()
        return work
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay() -> None:
        graph.replay()

    return replay


def device_time(work: Work, device: torch.device, *, groups: int = 25) -> Spread:
    """Measure the time of a call; medians over groups of calls."""
    if device.type != "cuda":
        return spread([_host_us(work) for _ in range(max(2, min(groups, 3)))])
    for _ in range(WARM_REPLAYS):
        work()
    calls = max(1, min(200, int(GROUP_US / max(1e-3, _events_us(work, 3, 1)[0]))))
    return spread(_events_us(work, calls, groups))


def _events_us(work: Work, calls: int, groups: int) -> list[float]:
    """Return µs per call, for each group."""
    marks = [device_event(timing=True) for _ in range(groups + 1)]
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(calls):
            work()
        mark.record()
    marks[-1].synchronize()
    return [1e3 * before.elapsed_time(after) / calls for before, after in pairwise(marks)]


def device_event(*, timing: bool = False) -> Any:
    """Return a new event of the device."""
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call,unused-ignore]


def _host_us(work: Work) -> float:
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began)


def host_times(work: Work, count: int) -> list[float]:
    """Return host µs of `count` calls, ascending; the work itself must wait for the device."""
    return sorted(_host_us(work) for _ in range(count))


def synchronize(device: torch.device) -> None:
    """Wait for the device; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
