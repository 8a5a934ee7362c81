"""Report on scaled replicas: criteria, page, table of moments as CSV, and plot against the ideal number."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from loadtest.measurement.plot import picture
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from tutti_asr_lab.trials.calls import OPENED_WITHIN_S, Plan
from tutti_asr_lab.trials.figures import StreamFigures, figures
from tutti_asr_lab.trials.scaled_replicas import Moment, Record
from tutti_asr_lab.trials.streams import Outcome

NAME = "scaling"
REFUSED_AT_MOST, TOO_MANY_AT_MOST = 1.0, 33.4
"""Bars, in percent of the calls, and of the replicas that the rule wants for the load."""

REFUSED = 503


@dataclass(frozen=True, slots=True)
class Played:
    """What a run gave: outcome of each call and whether it could resume, text of each audio, record of the loop."""

    outcomes: Sequence[tuple[bool, Outcome]]
    texts: Mapping[str, str]
    record: Record


class Row(msgspec.Struct, frozen=True):
    """One line of the CSV file: the plan and the replicas at one time."""

    at_s: float
    scheduled: float
    """Calls that the profile has at this time."""
    ideal: int
    """Replicas that the rule wants for them."""
    open: int
    ready: int
    starting: int
    draining: int
    load: float | None
    seen: float | None


class Scaling(msgspec.Struct, frozen=True):
    """The result document. Shares in percent."""

    command: str
    channels: int
    calls: tuple[int, ...]
    """Open calls: before, between and after the doublings."""
    rise_s: float
    faster: float
    bars: tuple[Criterion, ...]
    placed: int
    """Calls made."""
    refused: int
    resumable: StreamFigures
    plain: StreamFigures
    starts_s: tuple[float, ...]
    drains: int
    ideal_peak: int
    ready_peak: int
    replica_s: float
    """Seconds of replicas, starting and draining ones included."""
    ideal_s: float
    environment: Environment


def ideal(plan: Plan, at_s: float) -> int:
    """Return the number of replicas that the rule wants for the planned load at a time."""
    rule = plan.rule
    return max(rule.least, min(rule.most, rule.wanted(plan.peak * plan.profile.speaking(at_s) / plan.channels)))


def rows(plan: Plan, moments: Sequence[Moment]) -> list[Row]:
    """Return the moments until the profile's end, with the plan at those times."""
    profile = plan.profile
    return [
        Row(
            at_s=each.at_s,
            scheduled=round(plan.peak * profile.speaking(each.at_s), 2),
            ideal=ideal(plan, each.at_s),
            open=each.open,
            ready=each.ready,
            starting=each.starting,
            draining=each.draining,
            load=each.load,
            seen=each.seen,
        )
        for each in moments
        if each.at_s <= profile.seconds
    ]


def judge(
    refused: float | None, streams: Sequence[StreamFigures], found: Sequence[Row], record: Record, peak_s: float
) -> list[Criterion]:
    """Return the criteria.

    `refused`: percent of all calls; `streams`: accepted ones, resumable first; `peak_s`: end of the last doubling.
    """
    rising = [row for row in found if OPENED_WITHIN_S <= row.at_s <= peak_s]
    too_many = max((100 * ((row.ready + row.starting) / row.ideal - 1) for row in rising), default=None)
    missing = max(row.ideal for row in found) - max(row.ready for row in found) if found else None
    extra = found[-1].ready + found[-1].starting - found[-1].ideal if found else None
    return [
        Criterion("calls refused", REFUSED_AT_MOST, refused, "%"),
        Criterion("transcripts that differ", 0, sum(kind.finished - kind.equal for kind in streams)),
        Criterion("accepted calls that did not finish", 0, sum(kind.streams - kind.finished for kind in streams)),
        Criterion("audio of resumable calls lost", 0, streams[0].lost_s, "s"),
        Criterion("replicas too many while the load rises", TOO_MANY_AT_MOST, too_many, "%"),
        Criterion("replicas missing at the peak", 0, missing),
        Criterion("replicas too many at the end", 0, extra),
        Criterion("drained replicas with an exit code other than 0", 0, sum(code != 0 for code in record.codes)),
    ]


def concluded(plan: Plan, command: str, played: Played, environment: Environment) -> tuple[Scaling, list[Row]]:
    """Return document and rows."""
    outcomes, record = played.outcomes, played.record
    refused = sum(REFUSED in outcome.statuses for _, outcome in outcomes)
    accepted = [(kind, outcome) for kind, outcome in outcomes if kind or REFUSED not in outcome.statuses]
    kinds = [
        figures([outcome for kind, outcome in accepted if kind is wanted], played.texts) for wanted in (True, False)
    ]
    found, profile = rows(plan, record.moments), plan.profile
    peak_s = profile.at_s[1 + 2 * plan.doublings]
    gaps_s = [later.at_s - before.at_s for before, later in pairwise(found)]
    existing = [row.ready + row.starting + row.draining for row in found]
    document = Scaling(
        command=command,
        channels=plan.channels,
        calls=tuple(plan.calls * 2**doubled for doubled in range(plan.doublings + 1)),
        rise_s=plan.rise_s,
        faster=plan.faster,
        bars=tuple(judge(round(100 * refused / len(outcomes), 2), kinds, found, record, peak_s)),
        placed=len(outcomes),
        refused=refused,
        resumable=kinds[0],
        plain=kinds[1],
        starts_s=tuple(record.starts_s),
        drains=record.drains,
        ideal_peak=max(row.ideal for row in found),
        ready_peak=max(row.ready for row in found),
        replica_s=round(sum(number * gap_s for number, gap_s in zip(existing, gaps_s, strict=False)), 1),
        ideal_s=round(sum(row.ideal * gap_s for row, gap_s in zip(found, gaps_s, strict=False)), 1),
        environment=environment,
    )
    return document, found


def markdown(found: Scaling) -> str:
    """Return the page."""
    kinds = (("Resumable", found.resumable), ("Plain", found.plain))
    starts = ", ".join(f"{seconds:.1f}" for seconds in found.starts_s) or "none"
    what = f"Real replicas of {found.channels} channels with HAProxy in front of them. The open calls "
    what += f"({', '.join(map(str, found.calls))}) double within {found.rise_s:g} s each time, {found.faster:g} times "
    what += "faster than in a cluster, and all times of the chart's rule are as much shorter."
    numbers = f"{found.placed} calls, {found.refused} refused; at most {found.ready_peak} replicas ready, "
    numbers += f"{found.ideal_peak} wanted; {found.drains} drained. "
    numbers += f"Seconds from a decision until the replica took calls: {starts}.  "
    lines = ["# Replicas scaled by load", "", f"`{found.command}`", "", what, "", *table(found.bars), ""]
    lines += [numbers, f"Seconds of replicas: {found.replica_s:g}, of the ideal number {found.ideal_s:g}.  "]
    for name, kind in kinds:
        text = f"{name} calls: {kind.streams}, {kind.finished} finished, {kind.equal} equal word for word; "
        lines.append(f"{text}{kind.by_ticket} times moved by ticket, {kind.by_replay} from the last final.  ")
    lines += ["", *place_lines(found.environment)]
    return "\n".join(lines) + "\n"


def write(found: Scaling, moments: Sequence[Row], folder: Path) -> list[Path]:
    """Write document, page, table of moments and plot; returns their paths."""
    paths = pages.write(found, markdown(found), folder, NAME)
    table_path, plot = folder / f"{NAME}.csv", folder / f"{NAME}.png"
    with table_path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row.__struct_fields__)
        writer.writerows(msgspec.structs.astuple(row) for row in moments)
    draw(moments, found.channels, plot)
    return [*paths, table_path, plot]


def draw(moments: Sequence[Row], channels: int, path: Path) -> None:
    """Plot calls and replicas over time; the dashed line is the number that the rule wants for the planned load."""
    at_s = [row.at_s for row in moments]
    with picture(path, 2, 1, (9, 6), sharex=True) as (calls, replicas):
        calls.plot(at_s, [row.scheduled for row in moments], "--", label="planned calls")
        calls.step(at_s, [row.open for row in moments], where="post", label="open channels")
        calls.step(at_s, [channels * row.ready for row in moments], where="post", label="channels of ready replicas")
        replicas.step(at_s, [row.ideal for row in moments], "--", where="post", label="ideal")
        replicas.step(at_s, [row.ready for row in moments], where="post", label="ready")
        for name in ("starting", "draining"):
            replicas.step(at_s, [getattr(row, name) for row in moments], ":", where="post", label=name)
        calls.set(ylabel="calls")
        replicas.set(xlabel="seconds", ylabel="replicas")
