"""A capacity estimate with a given value."""

from __future__ import annotations

from batching.capacity import Capacity


class FixedCapacity(Capacity):
    """A capacity estimate with a given value."""

    def __init__(self, streams: int) -> None:
        super().__init__(step_s=0.08, objective_s=0.1, max_batch=8)
        self.estimate = streams

    def streams(self) -> int:
        """The estimate."""
        return self.estimate
