"""Parts of the latency of results: means over all results and over the slowest 2 %.

The mean of all results shows where time is spent; the slowest 2 % show what causes high latencies.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from loadtest.generator.answers import LatencySplit

SLOWEST = 0.02  # beyond p98
NAMES = ("opening", "generator", "queue", "step", "handover", "decode", "write")


class Parts(msgspec.Struct, frozen=True):
    """Mean milliseconds from a step's scheduled send to its result; the parts add up to `latency`.

    `opening`: the step was due before the handshake was complete. `generator`: it was sent late. `queue` to `write` are
    reported by the server; `write` is that of the connection's previous result. `rest`: until the server has read the
    step, and until the generator has read the result.
    """

    latency: float
    opening: float
    generator: float
    queue: float
    step: float
    handover: float
    decode: float
    write: float
    rest: float


class Composition(msgspec.Struct, frozen=True):
    """Parts of all results and of the slowest share (`SLOWEST`)."""

    every: Parts
    slowest: Parts


class Breakdown:
    """Collects the parts as float32."""

    def __init__(self) -> None:
        self._ms = array("f")

    def add(self, latency_s: float, opening_s: float, generator_s: float, split: LatencySplit) -> None:
        """Add one result, with the times of the last step that it covers."""
        self._ms.extend(
            (
                latency_s * 1e3,
                opening_s * 1e3,
                generator_s * 1e3,
                split.queue_ms,
                split.step_ms,
                split.handover_ms,
                split.decode_ms,
                split.write_ms,
            )
        )

    def composition(self) -> Composition | None:
        """Return the means; None without results."""
        if not self._ms:
            return None
        rows = np.frombuffer(self._ms, np.float32).reshape(-1, 1 + len(NAMES)).astype(np.float64)
        slowest = np.argsort(rows[:, 0])[-max(1, round(SLOWEST * len(rows))) :]
        return Composition(_means(rows), _means(rows[slowest]))


def _means(rows: np.ndarray) -> Parts:
    latency, *parts = rows.mean(axis=0).tolist()
    rest = latency - sum(parts)
    return Parts(*(round(mean_ms, 3) for mean_ms in (latency, *parts, rest)))
