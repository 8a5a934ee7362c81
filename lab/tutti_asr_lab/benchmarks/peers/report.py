"""The comparison as JSON, as a page and as plots."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.measurement.plot import picture
from loadtest.reports import pages
from loadtest.reports.pages import percentile, place_lines
from tutti_asr_lab.benchmarks.peers.contestants import Contestant, Findings, Probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADINGS = (
    "server", "streams sustained", "rounds", "tutti ×", "p50 there", "p98 there", "mean batch", "server, cores",
    "texts that differ",
)  # fmt: skip

NOTES = """
Sustained: every step of every stream has a result, and p98 chunk latency, from the scheduled send of a step's last
sample, meets the objective; the load generator runs on the same cores. Rounds alternate; a server's figure is their
median. All servers answer each step with the text so far and the end of a stream with a final; all decode greedily.

- sherpa-onnx computes its own features (Hann window, Slaney's mel filters, pre-emphasis), whose energies the graph
  maps to ours approximately, so its texts differ from tutti's. It answers a step with the text of the previous step,
  whose windows are complete; these 80 ms are not counted against it. int8 is onnxruntime's dynamic quantization, whose
  scales depend on the batch.
- A published model's dynamic int8 file is made from the same graph with the settings of the script that makes the
  released ones: MatMul alone for zipformer, all operations for NeMo.
- Texts that differ: complete recordings whose text under load is not that of the same server without load.
- tutti does more than the others for each step: endpoints, word times, segments, metrics, admission.
"""


def write(findings: Findings, folder: Path, name: str) -> list[Path]:
    """Write NAME.json, NAME.md and NAME.png and return their paths."""
    paths = [*pages.write(findings, markdown(findings, f"{name}.png"), folder, name), folder / f"{name}.png"]
    draw(findings, paths[-1])
    return paths


def rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return a line per server."""
    return [_row(findings, contestant) for contestant in findings.peers()]


def _row(findings: Findings, contestant: Contestant) -> tuple[str, ...]:
    name, edge = contestant.name, findings.edge(contestant.name)
    ratio, spread = findings.ratio(name), edge.chunk_latency_ms if edge else None
    searched = [probe for probe in findings.of(name) if probe.searched]
    compared, differ = sum(p.compared for p in searched), sum(p.mismatched for p in searched)
    return (
        contestant.title,
        f"{findings.sustained(name):.0f}",
        ", ".join(str(streams) for streams in findings.by_round(name)),
        "–" if ratio is None or name == contestant.counterpart else f"{ratio:.1f}",
        percentile(spread, "p50"),
        percentile(spread, "p98"),
        pages.number(edge.mean_batch if edge else None),
        f"{sum(edge.server_cores.values()):.2f}" if edge else "–",
        f"{differ} of {compared}" if compared else "–",
    )


def markdown(findings: Findings, image: str) -> str:
    """Return the comparison as a page."""
    lines = ["# Live streams: tutti and alternatives", "", f"`{findings.command}`", ""]
    lines += [
        f"Most live streams at p98 chunk latency ≤ {findings.objective_ms:g} ms; levels of {findings.seconds:g} s,"
    ]
    ended = any(probe.compared for probe in findings.probes)
    which = "one after another" if ended else "longer than a level, so that none ended in one and no text was compared"
    lines += [f"streams of about {findings.stream_s:g} s, {which}.", ""]
    lines += [
        *pages.table(HEADINGS, rows(findings)),
        NOTES,
        *_pairs(findings),
        "## Where the time goes",
        "",
        "CPU time at the sustained level, in cores.",
        "",
    ]
    lines += [text for contestant in findings.peers() if (text := _where(findings, contestant))]
    problems = {f"- {p.peer}, {p.streams} streams: {p.problem.splitlines()[0]}" for p in findings.probes if p.problem}
    lines += ["", *sorted(problems), ""] if problems else [""]
    lines += [*place_lines(findings.environment, findings.versions), "", f"![latencies]({image})", ""]
    return "\n".join(lines)


def _pairs(findings: Findings) -> list[str]:
    """Return the ratio of each two servers, with its range over the rounds."""
    names = [contestant.name for contestant in findings.peers()]
    if len(names) < 2:
        return []
    lines = [
        "## Each pair",
        "",
        "Streams of the row's server for one of the column's: median of the rounds (range).",
        "",
    ]
    table = [(name, *(_pair(findings, name, other) for other in names)) for name in names]
    return [*lines, *pages.table(("", *names), table), ""]


def _pair(findings: Findings, name: str, other: str) -> str:
    ratios = [] if name == other else findings.ratios(name, other)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "–"


def _where(findings: Findings, contestant: Contestant) -> str:
    edge = findings.edge(contestant.name)
    if edge is None:
        return ""
    parts = sorted(edge.server_cores.items(), key=lambda item: -item[1])
    cores = ", ".join(f"{name} {value:.2f}" for name, value in parts)
    return f"- {contestant.title}, {edge.streams} streams: {cores}; generator {edge.generator_cores:.2f}."


def draw(findings: Findings, path: Path) -> None:
    """Plot latency at the common level, and p98 and batch sizes by streams."""
    with picture(path, 1, 3, (16, 4.6)) as (left, middle, right):
        for number, contestant in enumerate(findings.peers()):
            color, probes = f"C{number}", findings.of(contestant.name)
            _distribution(left, contestant, probes, color)
            _p98(middle, contestant, probes, color)
            _batches(right, contestant, probes, color)
        middle.axhline(findings.objective_ms, color="grey", linewidth=0.8)
        left.set(xlabel="chunk latency, ms", ylabel="share of steps at or below", xscale="log", ylim=(0, 1))
        left.set_title(f"{findings.common} live streams")
        logarithmic = {"xlabel": "live streams", "xscale": "log", "yscale": "log"}
        middle.set(ylabel="p98 chunk latency, ms", title="p98", **logarithmic)
        right.set(ylabel="rows of a batch", title="batches: p10, p50, p90", **logarithmic)


def _distribution(axes: Axes, contestant: Contestant, probes: list[Probe], color: str) -> None:
    for probe in probes:
        if probe.cdf:
            milliseconds, shares = zip(*probe.cdf, strict=True)
            axes.step(milliseconds, shares, where="post", color=color, label=contestant.title)
            return


def _p98(axes: Axes, contestant: Contestant, probes: list[Probe], color: str) -> None:
    points = sorted((p.streams, p.chunk_latency_ms.p98) for p in probes if p.chunk_latency_ms is not None)
    if points:
        streams, p98 = zip(*points, strict=True)
        axes.plot(streams, p98, color=color, marker="o", markersize=4, linestyle="", label=contestant.title)


def _batches(axes: Axes, contestant: Contestant, probes: list[Probe], color: str) -> None:
    measured = [(p.streams, p.batch_sizes) for p in probes if p.batch_sizes]
    if measured:
        streams = [number for number, _ in measured]
        low, middle, high = ([quantile(sizes, at) for _, sizes in measured] for at in (0.1, 0.5, 0.9))
        axes.plot(streams, middle, color=color, marker="o", markersize=4, linestyle="", label=contestant.title)
        axes.vlines(streams, low, high, color=color, linewidth=1, alpha=0.5)


def quantile(sizes: dict[int, float], at: float) -> int:
    """Return the quantile `at` of batch sizes."""
    left = at * sum(sizes.values())
    for size in sorted(sizes):
        left -= sizes[size]
        if left <= 0:
            return size
    return max(sizes)
