"""Place of decoded audio in a container's time: gaps become silence, and what lies beyond the end is dropped. Pure.

Codecs send nothing, or next to nothing, while nobody speaks (DTX), and packets are lost. The container's timestamps
show how long that was; without the silence the times of all later words would be too early.
"""

from __future__ import annotations

from server.errors import Undecodable

TOLERANCE_S = 0.03  # WebM rounds to milliseconds, and recorders' clocks wander: less than two packets of 20 ms
MAX_GAP_S = 600.0  # of a paused recorder; the decode budget bounds the sum of all gaps
BACKWARD_S = 1.0  # a clock that was set back: time goes on from there


class Timeline:
    """Time of one track: what was decoded so far, measured by the container's timestamps, in seconds."""

    def __init__(self, delay_s: float) -> None:
        """`delay_s` is what the decoder drops of the beginning."""
        self._delay_s = delay_s
        self._position_s: float | None = None  # None until the first timestamp

    def gap_before_s(self, start_s: float) -> float:
        """Return the silence before audio that begins at `start_s`. Raises: Undecodable for too much of it."""
        if self._position_s is None or start_s < self._position_s - BACKWARD_S:
            self._position_s = start_s + (self._delay_s if self._position_s is None else 0.0)
        gap_s = start_s - self._position_s
        if gap_s > MAX_GAP_S:
            raise Undecodable(f"the timestamps jump ahead by {gap_s:.0f} s, more than {MAX_GAP_S:g} s")
        return gap_s if gap_s > TOLERANCE_S else 0.0

    def gap_within_s(self, end_s: float, decoded_s: float, *, last: bool) -> float:
        """Return the silence before audio of this length that ends at `end_s`, negative for what is over the end."""
        if self._position_s is None:
            start_s = end_s - decoded_s
            self._position_s = max(start_s, self._delay_s) if last else start_s
        over_s = self._position_s + decoded_s - end_s
        if last and over_s > 0:
            return -min(over_s, decoded_s)
        return self.gap_before_s(end_s - decoded_s)

    def advance(self, seconds: float) -> None:
        """Count audio or silence that was delivered."""
        if self._position_s is not None:
            self._position_s += seconds
