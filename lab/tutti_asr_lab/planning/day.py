"""`tutti plan --users`: replicas over the time of a profile, by hour, as a table, CSV file and JSON document."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tutti_asr_lab.planning.plan import Output
from tutti_asr_lab.planning.plan_report import provenance_line
from tutti_asr_lab.simulation.calibration import Calibration
from tutti_asr_lab.simulation.fleet import Fleet, FleetSettings, Moment
from tutti_asr_lab.simulation.planning import Point, Serving, capacity, run_load
from tutti_asr_lab.simulation.profile import Profile

PROFILES = Path(__file__).with_name("profiles")
HOUR_S = 3_600.0
HEADINGS = (
    "until",
    "calls",
    "open",
    "replicas",
    "starting",
    "draining",
    "fullest",
    "refused",
    "moved",
    "cut",
    "failed",
)
RAMP_S = 300.0
"""Refusals of a short time count as a share of the calls of this time, in which an autoscaler reacts."""


@dataclass(frozen=True, slots=True)
class Day:
    """A simulated time; `at` is the fullest replica of all, simulated with the real batcher."""

    settings: FleetSettings
    moments: tuple[Moment, ...]
    at: Point

    @property
    def refused(self) -> float:
        """Share of all calls that were refused."""
        return sum(each.refused for each in self.moments) / max(1, sum(each.calls for each in self.moments))

    @property
    def refused_at_worst(self) -> float:
        """Share of the calls refused in the worst `RAMP_S`."""
        length = max(1, sum(each.at_s <= RAMP_S for each in self.moments))
        parts = [self.moments[begin : begin + length] for begin in range(max(1, len(self.moments) - length + 1))]
        return max(sum(each.refused for each in part) / max(1, sum(each.calls for each in part)) for part in parts)

    @property
    def peak(self) -> int:
        """Most replicas that existed at the same time."""
        return max(each.ready + each.starting + each.draining for each in self.moments)

    @property
    def too_many(self) -> float:
        """Most replicas, ready or starting, over those wanted for the load of that moment, when some are added."""
        rising = [
            later
            for before, later in zip(self.moments, self.moments[1:], strict=False)
            if later.ready + later.starting > before.ready + before.starting
        ]
        return max(((each.ready + each.starting) / each.needed for each in rising), default=1.0)


def profile_of(name: str) -> Profile:
    """Read a profile: a CSV file, or one that ships, by its name. Raises: OSError, ValueError."""
    shipped = PROFILES / f"{name}.csv"
    return Profile.load(shipped if shipped.exists() else Path(name))


def usable_channels(device: Calibration, serving: Serving, *, slo_s: float, headroom: float, seed: int) -> int:
    """Return the channels that one replica carries within the objective, with the real batcher and `headroom`."""
    limit = capacity(device, serving, slo_s, seed=seed)
    return 0 if limit is None else math.floor(limit.streams * (1 - headroom))


def simulate_day(device: Calibration, serving: Serving, profile: Profile, settings: FleetSettings, *, seed: int) -> Day:
    """Simulate a fleet, and its fullest replica with the real batcher."""
    moments = tuple(Fleet(settings, profile, seed).run(min(60.0, profile.seconds / 10)))
    fullest = max(1, *(each.fullest for each in moments))
    return Day(settings, moments, Point(fullest, run_load(device, serving, fullest, seed=seed)))


def report(device: Calibration, day: Day | None) -> Output:
    """Return the table by hour, what it comes to, and the same as a document."""
    if day is None:
        return Output((provenance_line(device), "not possible: one call exceeds the latency"), "{}", possible=False)
    settings, latency = day.settings, day.at.outcome.latency_ms
    assert latency is not None
    hours = by_hour(day.moments)
    rows = [HEADINGS, *(_cells(hour) for hour in hours)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    each = f"{settings.limit:,} channels on a replica, fill {settings.rule.fill:g}"
    worst = f"{day.refused_at_worst:.2%} in the worst {RAMP_S / 60:g} minutes"
    lines = (
        provenance_line(device),
        f"{settings.users:,} users, calls of {settings.stream_s:g} s, {each}",
        *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows),
        f"peak {day.peak:,} replicas; refused {day.refused:.2%} of all calls, {worst}",
        f"while the load rises, at most {max(0.0, day.too_many - 1):.0%} more replicas than the rule wants for it",
        f"p98 on the fullest replica, with {day.at.streams:,} channels: {latency.p98:.1f} ms",
    )
    document = {
        "settings": asdict(settings),
        "calibration": asdict(device.provenance),
        "hours": [asdict(hour) for hour in hours],
        "peak_replicas": day.peak,
        "refused": day.refused,
        "refused_at_worst": day.refused_at_worst,
        "too_many": day.too_many,
        "fullest": {"channels": day.at.streams, "p98_ms": latency.p98},
    }
    return Output(lines, json.dumps(document))


def write_csv(moments: Sequence[Moment], path: Path) -> None:
    """Write one line for each moment. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Moment)])
        writer.writeheader()
        writer.writerows(asdict(moment) for moment in moments)


def by_hour(moments: Sequence[Moment]) -> list[Moment]:
    """Add up what happened in each hour, or tenth of a shorter time; of numbers at one time the largest counts."""
    length_s = min(HOUR_S, moments[-1].at_s / 10)
    hours: dict[int, list[Moment]] = {}
    for moment in moments:
        hours.setdefault(math.ceil(moment.at_s / length_s - 1e-9), []).append(moment)
    return [_together(hour) for hour in hours.values()]


def _together(parts: Sequence[Moment]) -> Moment:
    counted = {name: sum(getattr(part, name) for part in parts) for name in COUNTED}
    largest = {name: max(getattr(part, name) for part in parts) for name in LARGEST}
    return Moment(at_s=parts[-1].at_s, **largest, **counted)


COUNTED = ("calls", "refused", "moved", "cut", "failures")
LARGEST = ("open", "ready", "starting", "draining", "fullest", "needed")


def _cells(hour: Moment) -> tuple[str, ...]:
    hours, seconds = divmod(round(hour.at_s), 3_600)
    numbers = (hour.calls, hour.open, hour.ready, hour.starting, hour.draining, hour.fullest)
    counts = (hour.refused, hour.moved, hour.cut, hour.failures)
    return (f"{hours:02}:{seconds // 60:02}", *(f"{number:,}" for number in (*numbers, *counts)))
