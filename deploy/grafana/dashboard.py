"""Generator of the Grafana dashboard: `python -m deploy.grafana.dashboard` writes deploy/grafana/dashboards/tutti.json.

Defines the look and layout of panels; their queries are in `panels.py`.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.panels import ROWS, Panel

TARGET = Path(__file__).parent / "dashboards" / "tutti.json"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="prometheus")
WIDTH, HEIGHT = 8, 8  # of 24 columns: three panels in a row


def build() -> str:
    """Return the dashboard as JSON for import into Grafana."""
    board = (
        dashboard.Dashboard("tutti")
        .uid("tutti")
        .description("Streaming speech recognition: latency by part, load and capacity, health of the process.")
        .tags(["tutti", "generated"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.QueryVariable("instance")
            .label("Replica")
            .datasource(SOURCE)
            .query("label_values(tutti_ready, instance)")
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for row in ROWS:
        board = board.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            board = board.with_panel(_panel(panel))
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(board.build())
    return text + "\n"


def _panel(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(WIDTH)
        .height(HEIGHT)
        .fill_opacity(30 if panel.stacked else 8)
        .show_points(look.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(look.StackingMode.NORMAL if panel.stacked else look.StackingMode.NONE))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(look.LegendDisplayMode.LIST)
            .placement(look.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI))
    )
    if panel.line is not None:
        steps = [model.Threshold(value=None, color="green"), model.Threshold(value=panel.line, color="red")]
        limits = dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)
        dashed = common.GraphThresholdsStyleConfig().mode(look.GraphThresholdsStyleMode.DASHED)
        built = built.thresholds(limits).thresholds_style(dashed)
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        built = built.with_target(target)
    return built


def main() -> None:
    """Write the file."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(build(), encoding="utf-8")


if __name__ == "__main__":
    main()
