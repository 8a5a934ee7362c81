"""Plots: latency and batch size against load by policy, for given loads also batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from batching.batcher import Policy
from loadtest.measurement.plot import picture
from tutti_asr_lab.planning.plan_report import provenance_line
from tutti_asr_lab.simulation.calibration import Calibration
from tutti_asr_lab.simulation.planning import Point, Serving, curve, most_streams

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Loads as shares of a replica's maximum with full batches; the knee is between the last ones."""

SECONDS = 4.0  # simulated at each load; enough for p98, and a plot takes half a minute


def draw(
    device: Calibration, serving: Serving, path: Path, *, loads: Sequence[int] | None = None, seed: int = 1
) -> None:
    """Simulate each policy up to the first unstable load, and write the plot."""
    count = 3 if loads else 2
    with picture(path, 1, count, (5.5 * count, 4.2)) as axes_of:
        _draw(device, serving, axes_of, loads, seed)
        axes_of[0].figure.suptitle(provenance_line(device), fontsize="small")


def _draw(
    device: Calibration, serving: Serving, axes_of: Sequence[Axes], loads: Sequence[int] | None, seed: int
) -> None:
    left, right = axes_of[:2]
    for number, policy in enumerate(Policy):
        served = replace(serving, policy=policy)
        most = most_streams(device, served)
        at = sorted({max(1, round(share * most)) for share in SHARES} | set(loads or ()))
        points = [
            p for p in curve(device, served, at, seconds=None if loads else SECONDS, seed=seed) if p.outcome.stable
        ]
        _latency(left, policy.value, points, f"C{number}")
        right.plot(
            [p.streams for p in points], [p.outcome.mean_batch for p in points], "-o", markersize=3, label=policy.value
        )
    if loads:
        chosen = curve(device, replace(serving, policy=Policy.EAGER), loads, seed=seed)
        _sizes(axes_of[2], chosen)
    left.set(xlabel="live streams on one replica", ylabel="latency, ms", yscale="log")
    right.set(xlabel="live streams on one replica", ylabel="rows of a batch, mean", yscale="log")


def _sizes(axes: Axes, points: Sequence[Point]) -> None:
    """Plot the share of batches by number of rows, for the policy eager."""
    for point in points:
        batches = point.outcome.batches
        total = sum(batches.values())
        shares = [batches.get(rows, 0) / total for rows in range(1, max(batches) + 1)]
        axes.plot(range(1, len(shares) + 1), shares, "-o", markersize=3, label=f"{point.streams} streams")
    axes.set(xlabel="rows of a batch", ylabel="share of batches, eager")


def _latency(axes: Axes, label: str, points: Sequence[Point], color: str) -> None:
    for name, style in (("p50", "--"), ("p98", "-")):
        measured = [(p.streams, getattr(p.outcome.latency_ms, name)) for p in points if p.outcome.latency_ms]
        axes.plot(*zip(*measured, strict=True), style, color=color, marker="o", markersize=3, label=f"{name} {label}")
