"""When the steps of a live stream are due: as they come, unless they come faster than real time. Pure.

The rule is the generic cell rate algorithm: a stream's steps have theoretical times of arrival, one interval apart, and
whatever comes ahead of its own by more than a tolerance counts as if it had come later. So a client that sends faster
than real time, or catches up after a stall, has steps that can wait, and pushes nobody back.
Source: ITU-T I.371 (GCRA as virtual scheduling); here the cell is delayed, not dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEVER_S = -math.inf


@dataclass(frozen=True, slots=True)
class Pace:
    """The rule for steps of `step_s` seconds of audio; 0 = a step is due when it comes, always."""

    step_s: float = 0.0
    burst_s: float = 0.5
    """Audio that may come at once: messages of up to half a second and the silence of a flush are no haste."""
    lead: float = 1.25
    """How much faster than real time still counts as in time: a stream that stalled is forgiven a second in four."""

    def due(self, ready_s: float, in_time_s: float) -> tuple[float, float]:
        """Return when a step that is ready at `ready_s` is due, and when the stream's next one would be in time.

        `in_time_s` is what the step before gave back, `NEVER_S` for a stream's first.
        """
        if not self.step_s:
            return ready_s, NEVER_S
        in_time_s = max(ready_s, in_time_s)
        return max(ready_s, in_time_s - self.burst_s), in_time_s + self.step_s / self.lead
