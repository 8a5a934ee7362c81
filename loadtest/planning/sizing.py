"""Tables and pictures of docs/sizing.md: replicas, cores, memory, network and descriptors for a number of calls.

`python -m loadtest.planning.sizing` writes the tables into the page, and the pictures. Replicas are those
of `tutti plan` with its defaults; what a replica needs is from measurements.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from batching.batcher import Policy
from batching.simulation.autoscaling import ScalingRule
from batching.simulation.calibration import Calibration, shipped
from batching.simulation.fleet import TICKS, FleetSettings
from batching.simulation.planning import Serving, run_load
from loadtest.planning.day import Day, by_hour, profile_of, simulate_day, usable_channels
from loadtest.served import tutti

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sizing.md"
PICTURE = ROOT / "docs" / "images" / "sizing.png"
MEASURED = ROOT / "loadtest" / "results" / "capacity.json"

CALLS = (100, 300, 1_000, 4_000)
SLO_S, HEADROOM = 0.1, 0.2  # the defaults of `tutti plan`
CORES_PER_REPLICA = 2  # event loop and model
MEMORY_GB = 0.6  # of a replica with 450 streams: docs/measured.md
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
LOADS = (25, 50, 100, 300)
"""Streams on one replica in the picture."""

MACHINES = ("--cores 2,4,8,16,64", "--cores 16 --gpu")
USERS = 100_000
FILLS = (0.7, 0.6, 0.5)
UNBOUNDED = ScalingRule(most=1_000)
"""The chart's rule with as many replicas as the load needs: the default of `tutti plan --users`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time and latency of a replica under a policy."""

    streams: int
    core_s_per_hour: float
    """Core-seconds for an hour of audio."""
    p98_ms: float


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


def simulated(device: Calibration, policy: Policy) -> list[Load]:
    """Simulate a replica at each load; overloads are left out."""
    found = []
    for streams in LOADS:
        outcome = run_load(device, replace(Serving(), policy=policy), streams)
        if outcome.stable and outcome.latency_ms is not None:
            cores = outcome.model_busy + outcome.loop_busy
            found.append(Load(streams, cores * 3600 / streams, outcome.latency_ms.p98))
    return found


def measured(policy: Policy) -> list[Load]:
    """Return the levels of the kept measurement without failures, of a server with real clients."""
    document: dict[str, Any] = msgspec.json.decode(MEASURED.read_bytes())
    levels = document["comparison"]["runs"].get(policy.value, {}).get("levels", [])
    return [
        Load(
            each["streams"], each["server"]["cpu_cores"] * 3600 / each["audio_s_per_s"], each["chunk_latency_ms"]["p98"]
        )
        for each in levels
        if not each["refused"] and not each["failed"]
    ]


def loads_table() -> list[str]:
    """Return the lines of the table of policies: simulated and measured loads of one replica."""
    lines = ["| policy | streams | core-seconds an hour of audio | p98, ms | |", "|---|---:|---:|---:|---|"]
    device = shipped()
    for policy in (Policy.SINGLE, Policy.EAGER, Policy.DEADLINE):
        for kind, loads in (("simulated", simulated(device, policy)), ("measured", measured(policy))):
            lines += [
                f"| `{policy.value}` | {load.streams} | {load.core_s_per_hour:.1f} | {load.p98_ms:.1f} | {kind} |"
                for load in loads
            ]
    return lines


def machines_table() -> list[str]:
    """Return the lines of the table of machines: what `tutti plan --cores` predicts, and what was ever run."""
    lines = [
        "| machine | front ends | engine threads | streams, predicted | bound by | ever run | command |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    for options in MACHINES:
        for each in json.loads(tutti("plan", *options.split(), "--json"))["machines"]:
            cells = (
                f"{each['cores']} cores{' and an H100' if each['gpu'] else ''}",
                each["front_ends"] or "one process",
                each["engine_threads"],
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


def draw(path: Path) -> None:
    """Draw p98 against core-seconds by policy; simulated loads as lines, measured ones as squares."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    device = shipped()
    for number, policy in enumerate((Policy.SINGLE, Policy.EAGER, Policy.DEADLINE)):
        for loads, style, kind in (
            (simulated(device, policy), "o-", "simulated"),
            (measured(policy), "s", "measured"),
        ):
            if loads:
                across = [load.core_s_per_hour for load in loads]
                up = [load.p98_ms for load in loads]
                axes.plot(across, up, style, color=f"C{number}", markersize=5, label=f"{policy.value}, {kind}")
            for load in loads:
                at = (load.core_s_per_hour, load.p98_ms)
                axes.annotate(f"{load.streams}", at, (4, 4), textcoords="offset points", fontsize="x-small")
    axes.set(xlabel="core-seconds for an hour of audio", ylabel="p98 of latency, ms", xscale="log", yscale="log")
    axes.set_title("Numbers: streams on one replica", fontsize="small")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def with_tables(page: str) -> str:
    """Return the page with current tables, which follow their marks."""
    tables = {
        "calls": table,
        "policies": loads_table,
        "machines": machines_table,
        "a day": day_table,
        "targets": doubling_table,
    }
    for name, make in tables.items():
        lines = make()
        mark = f"<!-- table of {name} -->\n"
        if page.count(mark) != 1:
            raise ValueError(f"{PAGE}: {mark.strip()!r} must occur exactly once")
        before, after = page.split(mark)
        kept = re.sub(r"^\n(?:\|.*\n)*\n?", "", after)
        page = before + mark + "\n" + "\n".join(lines) + "\n\n" + kept
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
    from loadtest.planning.plan_plot import draw_day

    draw_day(day_of("day", UNBOUNDED), PICTURE.with_name("day.png"))
