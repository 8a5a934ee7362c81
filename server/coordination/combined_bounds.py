"""Estimate of one model's live streams from the bounds measured by several front ends of one or more engines.

All processes of an engine measure the same engine, so its bound is the mean of theirs. Each process has its own event
loop, so the loops' bounds are added, and so are the bounds under pressure; a process without pressure contributes its
loop's bound. Streams are distributed evenly among processes, so an engine serves its processes' share of all streams.
The lowest engine bound divided by that share limits the total.
"""

from __future__ import annotations

from statistics import fmean

from batching.capacity import Bounds


class CombinedBounds:
    """The latest bounds of each process. Implements `Estimator`."""

    def __init__(self) -> None:
        self._bounds: dict[int, Bounds] = {}
        self._slowdowns: dict[int, float] = {}
        self._engines: dict[int, int] = {}

    def report(self, process: int, bounds: Bounds, slowdown: float, engine: int = 0) -> None:
        """Store the measurements of a process of this engine, replacing its last report."""
        self._bounds[process], self._slowdowns[process], self._engines[process] = bounds, slowdown, engine

    def sharing(self, engine: int) -> int:
        """Return the number of processes that have reported and whose streams share this engine."""
        return list(self._engines.values()).count(engine)

    def forget(self, process: int) -> None:
        """Drop the bounds of a process that has ended, or does not serve the model any more."""
        self._bounds.pop(process, None)
        self._slowdowns.pop(process, None)
        self._engines.pop(process, None)

    def possible(self) -> float:
        """Bound by service times alone; a number of streams, not rounded."""
        if not self._bounds:
            return 0.0
        return min(self._by_engines(), sum(one.loop for one in self._bounds.values()))

    def _by_engines(self) -> float:
        models: dict[int, list[float]] = {}
        for process, bounds in self._bounds.items():
            models.setdefault(self._engines[process], []).append(bounds.model)
        return min(fmean(found) * len(self._bounds) / len(found) for found in models.values())

    def streams(self) -> int:
        """Number of live streams within the objective: at least 1, or 0 while no process has reported."""
        if not self._bounds:
            return 0
        pressed = sum(
            one.loop if one.pressure is None else min(one.pressure, one.loop) for one in self._bounds.values()
        )
        return max(1, int(min(self.possible(), pressed)))

    def reserved(self) -> int:
        """Number of streams that service times allow and that pressure excludes."""
        return max(0, int(self.possible()) - self.streams())

    @property
    def slowdown(self) -> float:
        """Mean over the processes of the time of batches as a multiple of their time in the warm-up."""
        return fmean(self._slowdowns.values()) if self._slowdowns else 1.0

    def asked(self, streams: int) -> None:
        """Do nothing: the process that asked for the streams has counted them."""
