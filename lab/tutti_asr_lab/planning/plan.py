"""`tutti plan`: replicas needed for a load, or predictions for given loads, as text and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tutti_asr_lab.planning.plan_report import plan_lines, point_lines, provenance_line
from tutti_asr_lab.simulation.calibration import Calibration
from tutti_asr_lab.simulation.planning import Point, Serving, plan, run_load

MOST_CORES, MOST_LEVEL = 10_000, 1_000_000
"""Bounds of what can be meant, as numbers of one machine and of one replica."""


@dataclass(frozen=True, slots=True)
class Output:
    """Lines and JSON document to print; not `possible` if no number of replicas meets the objective."""

    lines: tuple[str, ...]
    document: str
    possible: bool = True


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse positive numbers of streams with commas. Raises: ValueError."""
    return _numbers(text, f"numbers of streams from 1 to {MOST_LEVEL:,}, with commas, such as 10,50,100", MOST_LEVEL)


def parse_cores(text: str) -> tuple[int, ...]:
    """Parse positive numbers of cores with commas. Raises: ValueError."""
    return _numbers(text, f"numbers of cores from 1 to {MOST_CORES:,}, with commas, such as 4,8,16", MOST_CORES)


def _numbers(text: str, form: str, most: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1 or max(numbers) > most:
        raise ValueError(f"must be {form}")
    return numbers


def answer(device: Calibration, serving: Serving, *, streams: int, slo_s: float, headroom: float, seed: int) -> Output:
    """Estimate the number of replicas for this number of streams."""
    found = plan(device, serving, streams=streams, slo_s=slo_s, headroom=headroom, seed=seed)
    asked = {"streams": streams, "slo_ms": slo_s * 1e3, "headroom": headroom, **_serving(serving)}
    document: dict[str, Any] = {"asked": asked, "calibration": asdict(device.provenance), "plan": None}
    if found is not None:
        document["plan"] = {
            "replicas": found.replicas,
            "streams_per_replica": found.streams_per_replica,
            "capacity": found.capacity,
            "at": _point(found.at),
            "limit": _point(found.limit),
        }
    lines = (provenance_line(device), *plan_lines(found, serving, streams, slo_s, headroom))
    return Output(lines, json.dumps(document), found is not None)


def predict(device: Calibration, serving: Serving, loads: Sequence[int], *, seconds: float | None, seed: int) -> Output:
    """Simulate each load on one replica."""
    points = [Point(streams, run_load(device, serving, streams, seconds=seconds, seed=seed)) for streams in loads]
    policy = serving.policy.value
    lines = [provenance_line(device), *point_lines(f"{policy}, finals {serving.finals}", points)]
    levels = [{"policy": policy, **_point(point)} for point in points]
    document = {"asked": _serving(serving), "calibration": asdict(device.provenance), "levels": levels}
    return Output(tuple(lines), json.dumps(document))


def _serving(serving: Serving) -> dict[str, object]:
    return {
        "policy": serving.policy.value,
        "max_batch": serving.max_batch,
        "latency_budget_ms": serving.budget_s * 1e3,
        "stream_s": serving.stream_s,
        "finals": serving.finals,
    }


def _point(point: Point) -> dict[str, object]:
    outcome = point.outcome
    return {
        "streams": point.streams,
        **asdict(outcome),
        "mean_batch": round(outcome.mean_batch, 2),
        "share_in_batches_of_2_or_more": round(outcome.batch_share(2), 4),
    }
