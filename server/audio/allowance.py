"""How much audio a client's bytes may decode to. Sans I/O; it is told the time.

Fourteen bytes of FLAC can be eight seconds of silence. A muted microphone sends just that, in real time; a file sent
as fast as it goes has bytes to show for its seconds. What has neither is refused.
"""

from __future__ import annotations

BURST_S = 60.0
SPEED = 50.0  # times real time, whatever the bytes
BYTES_A_SECOND = 250.0  # 2 kbit/s, a third of the least that speech is coded with


class Allowance:
    """The account of one stream."""

    def __init__(self, opened_s: float, max_piece_s: float) -> None:
        """No piece may decode to more than `max_piece_s`."""
        self._opened_s = opened_s
        self._max_piece_s = max_piece_s
        self._received_bytes = 0
        self._decoded_s = 0.0

    def limit_s(self, size_bytes: int, now: float) -> float:
        """Count a piece in; return how many seconds it may decode to."""
        self._received_bytes += size_bytes
        earned_s = max(self._received_bytes / BYTES_A_SECOND, SPEED * (now - self._opened_s))
        return min(self._max_piece_s, BURST_S + earned_s - self._decoded_s)

    def spend(self, decoded_s: float) -> None:
        """Count what it decoded to."""
        self._decoded_s += decoded_s
