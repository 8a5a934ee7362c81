"""Tables and pictures of docs/sizing.md: replicas, cores, memory, network and descriptors for a number of calls.

`python -m tutti_asr_lab.planning.sizing` writes the tables into the page, and the picture of a day. Replicas are those
of `tutti plan` with its defaults; what a replica needs is from measurements. The table and picture of policies are
those of `tutti_asr_lab.benchmarks.tradeoff`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from loadtest.served import ROOT, tutti
from tutti_asr_lab.planning.day import Day, by_hour, profile_of, simulate_day, usable_channels
from tutti_asr_lab.simulation.autoscaling import ScalingRule
from tutti_asr_lab.simulation.calibration import shipped
from tutti_asr_lab.simulation.fleet import TICKS, FleetSettings
from tutti_asr_lab.simulation.planning import Serving

PAGE = ROOT / "docs" / "sizing.md"
IMAGES = ROOT / "docs" / "images"

CALLS = (100, 300, 1_000, 4_000)
SLO_S, HEADROOM = 0.1, 0.2  # the defaults of `tutti plan`
CORES_PER_REPLICA = 2  # event loop and model
MEMORY_GB = 1.1  # of a replica after half an hour of 280 streams: docs/measured.md
DESCRIPTORS = 100  # of a replica without calls, and as many of a proxy
WIRE = (2_560 + 54) / 2_560  # headers of WebSocket, TCP, IP for each 80 ms of 16-bit audio at 16 kHz
LINEAR16_MBIT_S, MULAW_MBIT_S = 0.256 * WIRE, 0.064 * (640 + 54) / 640
HEADINGS = (
    "calls",
    "channels",
    "replicas",
    "cores",
    "memory, GB",
    "linear16, 16 kHz, Mbit/s",
    "mulaw, 8 kHz, Mbit/s",
    "descriptors of a replica",
    "of the proxy",
)
MACHINES = ("--cores 2,4,8,16,64", "--cores 16 --gpu")
USERS = 100_000
FILLS = (0.7, 0.6, 0.5)
UNBOUNDED = ScalingRule(most=1_000)
"""The chart's rule with as many replicas as the load needs: the default of `tutti plan --users`."""


@cache
def usable() -> int:
    """Return the channels that a replica carries with the shipped calibration."""
    return usable_channels(shipped(), Serving(), slo_s=SLO_S, headroom=HEADROOM, seed=1)


def table() -> list[str]:
    """Return the lines of the table of calls."""
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---:|' * len(HEADINGS)}",
    ]
    return lines + [_row(calls, channels, usable()) for calls in CALLS for channels in (1, 2)]


def _row(calls: int, channels: int, usable: int) -> str:
    """One line: `calls` of one or two channels on replicas with `usable` channels, and one more for the loss of one."""
    total = calls * channels
    planned = math.ceil(total / usable)
    replicas = planned + 1
    cells = (
        f"{calls:,} {'stereo' if channels == 2 else 'mono'}",
        f"{total:,}",
        f"{planned} + 1",
        f"{replicas * CORES_PER_REPLICA}",
        f"{replicas * MEMORY_GB:.1f}",
        f"{total * LINEAR16_MBIT_S:,.0f}",
        f"{total * MULAW_MBIT_S:,.0f}",
        f"{DESCRIPTORS + math.ceil(calls / planned):,}",
        f"{DESCRIPTORS + 2 * calls:,}",
    )
    return f"| {' | '.join(cells)} |"


def machines_table() -> list[str]:
    """Return the lines of the table of machines: what `tutti plan --cores` predicts, and what was ever run."""
    lines = [
        "| machine | front ends | engines × threads | streams, predicted | bound by | ever run | command |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    for options in MACHINES:
        for each in json.loads(tutti("plan", *options.split(), "--json"))["machines"]:
            cells = (
                f"{each['cores']} cores{' and an H100' if each['gpu'] else ''}",
                each["front_ends"] or "one process",
                f"{each['engines']} × {each['threads']}",
                f"{each['predicted']['streams']:,}",
                each["predicted"]["bound_by"],
                each["run"],
                f"`tutti plan {options}`",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def day_of(profile: str, rule: ScalingRule) -> Day:
    """Simulate what `tutti plan --users 100000 --profile PROFILE` does, with this rule."""
    serving = Serving()
    settings = FleetSettings(USERS, usable(), stream_s=serving.stream_s, rule=rule, tick_s=serving.stream_s / TICKS)
    return simulate_day(shipped(), serving, profile_of(profile), settings, seed=1)


def day_table() -> list[str]:
    """Return the lines of the table of a day: every third hour."""
    lines = ["| until | calls | open | replicas | refused | moved |", "|---|---:|---:|---:|---:|---:|"]
    for hour in by_hour(day_of("day", UNBOUNDED).moments)[2::3]:
        numbers = (hour.calls, hour.open, hour.ready, hour.refused, hour.moved)
        lines.append(f"| {round(hour.at_s / 3_600):02}:00 | {' | '.join(f'{number:,}' for number in numbers)} |")
    return lines


def doubling_table() -> list[str]:
    """Return the lines of the table of targets while the load doubles."""
    lines = [
        "| `fill` | replicas before, at most, after | refused in the worst five minutes | too many, at most |",
        "|---:|---:|---:|---:|",
    ]
    for fill in FILLS:
        day = day_of("doubling", replace(UNBOUNDED, fill=fill))
        moments = day.moments
        ready = f"{moments[15].ready}, {max(each.ready for each in moments)}, {moments[-1].ready}"
        lines.append(f"| {fill:g} | {ready} | {day.refused_at_worst:.2%} | {max(0.0, day.too_many - 1):.0%} |")
    return lines


def with_tables(page: str) -> str:
    """Return the page with current tables, which follow their marks."""
    tables = {
        "calls": table,
        "machines": machines_table,
        "a day": day_table,
        "targets": doubling_table,
    }
    for name, make in tables.items():
        page = placed(page, name, make())
    return page


def placed(page: str, name: str, lines: Sequence[str]) -> str:
    """Return the page with the lines of this table after its mark."""
    mark = f"<!-- table of {name} -->\n"
    if page.count(mark) != 1:
        raise ValueError(f"{PAGE}: {mark.strip()!r} must occur exactly once")
    before, after = page.split(mark)
    kept = re.sub(r"^\n(?:\|.*\n)*\n?", "", after)
    return before + mark + "\n" + "\n".join(lines) + "\n\n" + kept


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    from tutti_asr_lab.planning.plan_plot import draw_day

    draw_day(day_of("day", UNBOUNDED), IMAGES / "day.png")
