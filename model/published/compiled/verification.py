"""Whether a compiled step gives what its graph gives: both add noise of 8-bit products to the graph in floats."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

WORSE = 2.0
"""Most noise of a compiled step in relation to that of the graph with the same products in 8-bit integers: both round
the same numbers, some of them to another byte, so they differ, but neither should be worse."""
LEAST_NOISE = 1e-6  # of the signal's energy: that of another order of sums in floats


class Steps(Protocol):
    """Slots that run windows: `GraphSlots` or `CompiledSlots`."""

    def run(self, slots: NDArray[np.int64], windows: NDArray[Any], /) -> NDArray[np.float32]:
        """Step slots by one window each."""
        ...


def results_of(slots: Steps, windows: NDArray[Any]) -> NDArray[np.float32]:
    """Run windows (W, B, …) of B new streams. Returns: (W, B, …)."""
    return np.stack([slots.run(np.arange(windows.shape[1]), window) for window in windows])


def noise_of(reference: NDArray[np.float32], results: NDArray[np.float32]) -> float:
    """Energy of the difference, in relation to that of the reference."""
    difference = results.astype(np.float64) - reference
    return float(np.square(difference).sum() / max(1e-30, float(np.square(reference.astype(np.float64)).sum())))


def decibels(noise: float) -> float:
    """Signal-to-noise ratio of a relative noise."""
    return float(-10 * np.log10(max(noise, 1e-12)))


def check(floats: NDArray[np.float32], integers: NDArray[np.float32], compiled: NDArray[np.float32]) -> str:
    """Return why a compiled step must not be used, or an empty string.

    Results (W, B, …) of the graph in floats, of the graph with products in 8-bit integers, and of the compiled step.
    """
    if not np.isfinite(compiled).all():
        return "its results are not finite"
    expected, found = noise_of(floats, integers), noise_of(floats, compiled)
    if found > WORSE * expected + LEAST_NOISE:
        return f"its signal-to-noise ratio is {decibels(found):.1f} dB, that of the graph {decibels(expected):.1f} dB"
    return ""
