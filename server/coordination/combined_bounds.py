"""Estimate of one model's live streams from the bounds that several processes before one engine measure.

All of them measure the same engine, so the model's bound is the mean of theirs. Each has an event loop of its own, so
what these carry adds up, and so does what they carry under pressure; a process without pressure adds its loop's bound.
"""

from __future__ import annotations

from statistics import fmean

from batching.capacity import Bounds


class CombinedBounds:
    """The latest bounds of each process. Implements `Estimator`."""

    def __init__(self) -> None:
        self._bounds: dict[int, Bounds] = {}
        self._slowdowns: dict[int, float] = {}

    def __len__(self) -> int:
        """Number of processes that have reported."""
        return len(self._bounds)

    def report(self, process: int, bounds: Bounds, slowdown: float) -> None:
        """Take what a process measured; it replaces what it reported before."""
        self._bounds[process], self._slowdowns[process] = bounds, slowdown

    def forget(self, process: int) -> None:
        """Drop the bounds of a process that has ended, or does not serve the model any more."""
        self._bounds.pop(process, None)
        self._slowdowns.pop(process, None)

    def possible(self) -> float:
        """Bound by service times alone; a number of streams, not rounded."""
        bounds = self._bounds.values()
        if not bounds:
            return 0.0
        return min(fmean(one.model for one in bounds), sum(one.loop for one in bounds))

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
