"""Plans, predictions and calibrations as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from tutti_asr_lab.simulation.calibration import Calibration
from tutti_asr_lab.simulation.planning import Plan, Point, Serving

BUSY = 0.1
"""Cores taken by other programs, from which on a calibration is reported as disturbed."""

HEADINGS = ("streams", "p50", "p90", "p98", "p99", "batch", "in batches ≥ 2", "model busy", "loop busy", "keeps up")


def provenance_line(device: Calibration) -> str:
    """Return model, precision and machine of a calibration."""
    at = device.provenance
    parts = [at.model, at.precision, at.decoder, at.hardware]
    parts += [f"{at.cores} cores, {at.threads} for compute"] if at.cores else []
    parts += [f"measured {at.date[:10]}"] if at.date else []
    measured = device.interference.idle_s + device.interference.busy_s > 0
    parts += ["optimistic: interference in the server not measured"] if at.date and not measured else []
    if at.others >= BUSY:
        parts += [f"other programs took {at.others:.1f} cores meanwhile: run tutti calibrate on your idle machine"]
    return "; ".join(part for part in parts if part)


def plan_lines(found: Plan | None, serving: Serving, streams: int, slo_s: float, headroom: float) -> list[str]:
    """Return lines with the needed replicas, or why the target is impossible; without the clients' network."""
    asked = f"{streams:,} live streams, p98 ≤ {slo_s * 1e3:g} ms, policy {serving.policy.value}"
    asked += f", batches of at most {serving.max_batch}, finals {serving.finals}"
    if found is None or found.at.outcome.latency_ms is None:
        return [asked, "not possible: a single stream on one replica exceeds this latency"]
    at, latency = found.at.outcome, found.at.outcome.latency_ms
    rows = (
        ("replicas", f"{found.replicas:,}"),
        ("streams per replica", f"{found.streams_per_replica:,} of {found.capacity:,} possible within the objective"),
        ("headroom", f"{headroom:.0%}"),
        ("latency p50, p98", f"{latency.p50:.1f}, {latency.p98:.1f} ms"),
        ("rows of a batch", f"{at.mean_batch:.1f}"),
        ("model thread, loop", f"{at.model_busy:.0%}, {at.loop_busy:.0%} busy"),
    )
    width = max(len(name) for name, _ in rows)
    limit = found.limit.outcome
    at_limit = f"At its capacity: p98 {limit.latency_ms.p98:.1f} ms, " if limit.latency_ms else ""
    return [
        asked,
        *(f"  {name:{width}}  {value}" for name, value in rows),
        f"{at_limit}batches of {limit.mean_batch:.1f}, model thread {limit.model_busy:.0%} busy.",
        "Latency is that of the server; the clients' network adds to it.",
    ]


def point_lines(label: str, points: Sequence[Point]) -> list[str]:
    """Return a table of loads on one replica, latencies in ms."""
    rows = [HEADINGS, *(_cells(point) for point in points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [f"policy {label}; latencies in ms", *lines]


def calibration_lines(device: Calibration) -> list[str]:
    """Return lines with the costs of a calibration."""
    costs, table = device.overheads, device.table
    parts = {
        "a stream": costs.open_s,
        "a batch": costs.batch_s,
        "a step received": costs.receive_s,
        "decoded": costs.decode_s,
        "written": costs.write_s,
        "in transit": costs.path_s,
        "a wake-up": costs.wake_s,
    }
    interference = device.interference
    longer = f"{interference.idle_s * 1e3:.2f} to {(interference.idle_s + interference.busy_s) * 1e3:.2f}"
    passes = [
        f"  second passes, finals {finals}: {one.step_s / device.step_s * 1e3:.2f} ms per second of audio, "
        f"event loop {one.loop_s * 1e6:+.0f} µs per step"
        for finals, one in device.passes.items()
    ]
    return [
        provenance_line(device),
        *passes,
        "  batch, median ms: " + ", ".join(f"{rows}: {table.median(rows) * 1e3:.2f}" for rows in table.rows),
        "  event loop, µs: " + ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in parts.items()),
        f"  engine outside the step: {costs.engine_s * 1e6:.0f} µs per batch",
        f"  batches in the server take {longer} ms longer than in the engine alone (event loop idle to busy)",
    ]


def _cells(point: Point) -> tuple[str, ...]:
    outcome = point.outcome
    latency = outcome.latency_ms
    times = (
        ("–",) * 4
        if latency is None
        else tuple(f"{ms:.1f}" for ms in (latency.p50, latency.p90, latency.p98, latency.p99))
    )
    return (
        str(point.streams),
        *times,
        f"{outcome.mean_batch:.1f}",
        f"{outcome.batch_share(2):.0%}",
        f"{outcome.model_busy:.0%}",
        f"{outcome.loop_busy:.0%}",
        "yes" if outcome.stable else "no",
    )
