"""A capacity with a given limit."""

from __future__ import annotations

from batching.capacity import Capacity, LatencyObjective


class FixedCapacity(Capacity):
    """A capacity with a given limit."""

    def __init__(self, streams: int) -> None:
        super().__init__(LatencyObjective(step_s=0.08, objective_s=0.1))
        self.limit = streams

    def streams(self) -> int:
        """The limit."""
        return self.limit
