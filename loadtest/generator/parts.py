"""What latencies are made of: the parts of each answer's latency, and their means over all answers and the slowest.

A mean of all says where time goes, not what makes an answer late; that is what the slowest two in a hundred are for.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from loadtest.generator.answers import LatencySplit

SLOWEST = 0.02  # as p98 has it
NAMES = ("opening", "generator", "queue", "step", "handover", "decode", "write")


class Parts(msgspec.Struct, frozen=True):
    """Mean milliseconds of some answers, from a step's scheduled send to its answer; the parts add up to the latency.

    `opening`: the step was due before the handshake was answered. `generator`: it left late. `queue` to `write` are the
    server's own account, `write` that of the connection's result before. `rest`: until the server had read it, and
    until the generator had read the answer.
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
    """The parts of all answers and of the slowest `SLOWEST`."""

    every: Parts
    slowest: Parts


class Breakdown:
    """Collects the parts, four bytes each."""

    def __init__(self) -> None:
        self._ms = array("f")

    def add(self, latency_s: float, opening_s: float, generator_s: float, split: LatencySplit) -> None:
        """Take one answer, that of the last step it covers."""
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
        """Return the means; None without any answer."""
        if not self._ms:
            return None
        rows = np.frombuffer(self._ms, np.float32).reshape(-1, 1 + len(NAMES)).astype(np.float64)
        slowest = np.argsort(rows[:, 0])[-max(1, round(SLOWEST * len(rows))) :]
        return Composition(_means(rows), _means(rows[slowest]))


def _means(rows: np.ndarray) -> Parts:
    latency, *parts = rows.mean(axis=0).tolist()
    rest = latency - sum(parts)
    return Parts(*(round(each, 3) for each in (latency, *parts, rest)))
