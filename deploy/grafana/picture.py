"""Draw the dashboard without Grafana: the same panels, with queries to a Prometheus server.

`python -m deploy.grafana.picture http://127.0.0.1:9090 docs/images/dashboard.png --minutes 5`
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deploy.grafana.panels import RATE, ROWS, Panel

COLUMNS = 3
POINTS = 150
HEADROOM = 1.3  # for the legend
TIMEOUT_S = 10.0


def filled(expr: str, window: str) -> str:
    """Return the expression with Grafana's variables replaced: all replicas, rates over `window`."""
    return expr.replace("$instance", ".*").replace(RATE, window)


def named(legend: str, labels: dict[str, str]) -> str:
    """Replace `{{label}}` in a legend."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend).strip()


def series(prometheus: str, expr: str, minutes: float) -> list[dict[str, Any]]:
    """Query a time range up to now. Raises: httpx.HTTPError."""
    end = time.time()
    asked: dict[str, str | float] = {
        "query": expr,
        "start": end - minutes * 60,
        "end": end,
        "step": minutes * 60 / POINTS,
    }
    answer = httpx.get(f"{prometheus}/api/v1/query_range", params=asked, timeout=TIMEOUT_S)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def _draw(panel: Panel, axes: Axes, prometheus: str, minutes: float, window: str) -> None:
    for query in panel.queries:
        for one in series(prometheus, filled(query.expr, window), minutes):
            at = [float(when) for when, _ in one["values"]]
            axes.plot(
                [when - at[-1] for when in at],
                [float(value) for _, value in one["values"]],
                label=named(query.legend, one["metric"]),
                linewidth=1.2,
            )
    if panel.line is not None:
        axes.axhline(panel.line, color="tab:red", linestyle=":", linewidth=1)
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.set_ylim(0, (axes.get_ylim()[1] or 1.0) * HEADROOM)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=6, loc="upper left", ncols=2)
        axes.set_xlabel("seconds", fontsize=7)


def picture(prometheus: str, to: Path, minutes: float, window: str) -> None:
    """Draw all panels to one file."""
    panels = [panel for row in ROWS for panel in row.panels]
    lines = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(15, 2.6 * lines), layout="constrained")
    for panel, axes in zip(panels, figure.subplots(lines, COLUMNS).flat, strict=False):
        _draw(panel, axes, prometheus, minutes, window)
    figure.savefig(to, dpi=80)


def main(
    prometheus: Annotated[str, typer.Argument(help="Where Prometheus answers.")],
    to: Annotated[Path, typer.Argument(help="The PNG to write.")],
    *,
    minutes: Annotated[float, typer.Option(help="How far back.")] = 5.0,
    window: Annotated[str, typer.Option(help="Over which rates are taken.")] = "15s",
) -> None:
    """Draw the dashboard's panels with matplotlib."""
    picture(prometheus.rstrip("/"), to, minutes, window)


if __name__ == "__main__":
    typer.run(main)
