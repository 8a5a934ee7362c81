"""Pictures of a load test: percentiles against streams, and the distribution of each level.

The only module that knows matplotlib, which is imported when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.generator.latencies import Spread
from loadtest.measurement.report import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = ("p50", "p98", "p99")
LINE_STYLES = ("-", "--", ":", "-.")


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Write one picture of one or more load tests, by label, in the format of the path's suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    percentiles(left, results, PERCENTILES)
    distributions(right, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def percentiles(axes: Axes, results: Mapping[str, Result], names: Sequence[str]) -> None:
    """Percentiles against streams, a line for each and for each label."""
    for (label, result), style in zip(results.items(), LINE_STYLES * len(results), strict=False):
        _percentiles(axes, label, result, style=style, names=names)
    axes.set(xlabel="live streams", ylabel="chunk latency, ms", yscale="log")
    _finish(axes)


def distributions(axes: Axes, results: Mapping[str, Result]) -> None:
    """The cumulative distribution of each level."""
    for (label, result), style in zip(results.items(), LINE_STYLES * len(results), strict=False):
        _distributions(axes, label, result, style)
    axes.set(xlabel="chunk latency, ms", ylabel="share of steps at or below", xscale="log", ylim=(0, 1))
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, which="both", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _percentiles(axes: Axes, label: str, result: Result, *, style: str, names: Sequence[str]) -> None:
    measured: list[tuple[int, Spread]] = [
        (level.streams, level.chunk_latency_ms)
        for level in result.document.levels
        if level.chunk_latency_ms is not None
    ]
    if not measured:
        return
    for number, name in enumerate(names):
        values = [getattr(spread, name) for _, spread in measured]
        axes.plot(
            [streams for streams, _ in measured],
            values,
            style,
            color=f"C{number}",
            marker="o",
            markersize=3,
            label=f"{name} {label}".strip(),
        )


def _distributions(axes: Axes, label: str, result: Result, style: str) -> None:
    for number, (level, cdf) in enumerate(zip(result.document.levels, result.cdfs, strict=True)):
        if cdf:
            milliseconds, shares = zip(*cdf, strict=True)
            axes.step(
                milliseconds, shares, style, where="post", color=f"C{number}", label=f"{level.streams} {label}".strip()
            )
