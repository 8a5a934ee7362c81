"""Position of decoded audio by a container's timestamps: gaps become silence, audio after the end is dropped. Pure.

During pauses encoders send few packets or none (DTX), and packets get lost. The container's timestamps show how long
the gap was; without silence for it, the times of all later words would be too early.
"""

from __future__ import annotations

from server.errors import Undecodable

TOLERANCE_S = 0.03  # for rounding to milliseconds (WebM) and clock drift; less than two packets of 20 ms
MAX_GAP_S = 600.0  # of a paused recorder; `DecodeBudget` bounds the sum of all gaps
PADDING_PACKETS = 2  # most that an end cuts: an encoder fills up one; a larger cut is a time that was not set
BACKWARD_S = 1.0  # a larger step back is a reset clock: time continues from the new value


class Timeline:
    """Time of one track: end of the audio delivered so far, in seconds of the container's timestamps."""

    def __init__(self, delay_s: float) -> None:
        """`delay_s` is the length that the decoder drops at the start of the track."""
        self._delay_s = delay_s
        self._position_s: float | None = None  # None until the first timestamp

    def gap_before_s(self, start_s: float) -> float:
        """Return the length of the gap before audio that starts at `start_s`. Raises: Undecodable if it is too long."""
        if self._position_s is None or start_s < self._position_s - BACKWARD_S:
            self._position_s = start_s + (self._delay_s if self._position_s is None else 0.0)
        gap_s = start_s - self._position_s
        if gap_s > MAX_GAP_S:
            raise Undecodable(f"the timestamps jump ahead by {gap_s:.0f} s; at most {MAX_GAP_S:g} s are supported")
        return gap_s if gap_s > TOLERANCE_S else 0.0

    def gap_within_s(self, end_s: float, decoded_s: float, packets: int, *, last: bool) -> float:
        """Return the gap before audio of this length that ends at `end_s`; negative: seconds to cut off the end."""
        if self._position_s is None:
            start_s = end_s - decoded_s
            self._position_s = max(start_s, self._delay_s) if last else start_s
        over_s = self._position_s + decoded_s - end_s
        if last and over_s > 0:
            return -over_s if over_s <= PADDING_PACKETS * decoded_s / packets else 0.0
        return self.gap_before_s(end_s - decoded_s)

    def advance(self, seconds: float) -> None:
        """Advance by audio or silence that was delivered."""
        if self._position_s is not None:
            self._position_s += seconds
