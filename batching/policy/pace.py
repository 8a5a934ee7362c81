"""Due times of live streams' steps: a rate rule that detects streams which send faster than real time.

Pure and stateless: each stream stores the one number that the rule needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEVER_S = -math.inf


@dataclass(frozen=True, slots=True)
class Pace:
    """Due times of a live stream's steps: at once, unless the stream sends faster than real time.

    The rule is the generic cell rate algorithm: a stream's steps have theoretical arrival times, one interval apart,
    and a step that arrives earlier than its own by more than a tolerance is due later (an early step). So a client that
    sends faster than real time, or catches up after a stall, delays no other stream.
    Source: ITU-T I.371 (GCRA as virtual scheduling); here the cell is delayed, not dropped.
    """

    step_s: float = 0.0
    """Seconds of audio in a step; 0 = every step is due when it arrives."""
    burst_s: float = 0.5
    """Seconds of audio that may arrive at once and still be due at once: a long message, or the silence of a flush."""
    lead: float = 1.25
    """Rate, as a multiple of real time, up to which steps are due at once: a stalled stream catches up 1 s in 4 s."""

    @property
    def interval_s(self) -> float:
        """Seconds between the theoretical arrival times of steps."""
        return self.step_s / self.lead

    def due(self, ready_s: float, in_time_s: float) -> tuple[float, float]:
        """Return the due time of a step that is ready at `ready_s`, and the theoretical arrival time of the next one.

        `in_time_s`: the second value returned for the stream's previous step; `NEVER_S` for its first step.
        """
        if not self.step_s:
            return ready_s, NEVER_S
        in_time_s = max(ready_s, in_time_s)
        return max(ready_s, in_time_s - self.burst_s), in_time_s + self.step_s / self.lead


NO_PACE = Pace()
"""Every step is due when it arrives."""
