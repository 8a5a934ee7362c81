"""Plots of a load test: percentiles by streams, and the distribution of each level.

matplotlib is imported when needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.measurement.report import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = ("p50", "p98", "p99")
LINE_STYLES = ("-", "--", ":", "-.")


@contextlib.contextmanager
def picture(path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any) -> Iterator[list[Any]]:
    """Yield axes to draw on; adds grids and legends and saves in the format of the path's suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
    try:
        yield list(grid.flat)
        for axes in grid.flat:
            axes.grid(visible=True, which="both", alpha=0.25)
            if axes.get_legend() is None and axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    finally:
        plt.close(figure)


def draw(label: str, result: Result, path: Path) -> None:
    """Plot percentiles and distributions of a load test."""
    with picture(path, 1, 2, (11, 4.2)) as (left, right):
        percentiles(left, {label: result}, PERCENTILES)
        distributions(right, label, result)


def percentiles(axes: Axes, results: Mapping[str, Result], names: Sequence[str]) -> None:
    """Plot percentiles by streams, a line for each percentile and label."""
    for (label, result), style in zip(results.items(), LINE_STYLES * len(results), strict=False):
        measured = [(level.streams, spread) for level in result.document.levels if (spread := level.chunk_latency_ms)]
        for number, name in enumerate(names if measured else ()):
            points = [(streams, getattr(spread, name)) for streams, spread in measured]
            marks: dict[str, Any] = {"color": f"C{number}", "marker": "o", "markersize": 3}
            axes.plot(*zip(*points, strict=True), style, label=f"{name} {label}".strip(), **marks)
    axes.set(xlabel="live streams", ylabel="chunk latency, ms", yscale="log")


def distributions(axes: Axes, label: str, result: Result) -> None:
    """Plot the cumulative distribution of each level."""
    for number, (level, cdf) in enumerate(zip(result.document.levels, result.cdfs, strict=True)):
        if cdf:
            named = f"{level.streams} {label}".strip()
            axes.step(*zip(*cdf, strict=True), where="post", color=f"C{number}", label=named)
    axes.set(xlabel="chunk latency, ms", ylabel="share of steps at or below", xscale="log", ylim=(0, 1))
