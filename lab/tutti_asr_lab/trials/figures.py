"""Report on injected faults: totals of the streams, criteria, page and plot.

One document has the results of several runs, one for each proxy and fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from loadtest.generator.latencies import Latencies, Spread
from loadtest.measurement.plot import picture
from loadtest.reports.criteria import Criterion, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from tutti_asr_lab.trials.streams import Outcome

NAME = "failover"
MAX_PROBLEMS = 20
RESTARTED = 1012
"""Close code "service restart" (RFC 6455, IANA), sent by a drain."""


class StreamFigures(msgspec.Struct, frozen=True):
    """Totals of the streams of one kind; counts unless a unit is named."""

    streams: int
    finished: int
    equal: int  # word for word
    interrupted: int  # streams that lost a connection
    reconnections: int
    by_ticket: int  # resumed exactly where they were
    by_replay: int  # replayed from the last final
    refused_tickets: dict[str, int]
    closes: dict[int, int]  # codes other than 1000
    refusals: dict[int, int]  # HTTP statuses
    replayed_s: float
    lost_s: float
    problems: tuple[str, ...] = ()


class FaultRun(msgspec.Struct, frozen=True):
    """Results for one proxy and one fault."""

    proxy: str
    fault: str
    command: str
    replicas: int
    drain_timeout_s: float
    bars: tuple[Criterion, ...]
    resumable: StreamFigures
    short: StreamFigures | None  # plain clients whose streams fit into the drain
    long: StreamFigures | None  # plain clients whose streams do not
    resume_ms: Spread | None  # from detecting the loss to resuming
    caught_up_ms: Spread | None  # from detecting the loss to sending all audio
    since_fault_ms: Spread | None  # from the fault to resuming
    resume_cdf: list[tuple[float, float]]
    since_fault_cdf: list[tuple[float, float]]
    environment: Environment


class Failover(msgspec.Struct, frozen=True):
    """The result document: the newest run of each proxy and fault."""

    runs: tuple[FaultRun, ...]


def figures(outcomes: Sequence[Outcome], references: Mapping[str, str]) -> StreamFigures:
    """Total the streams of one kind. `references`: each audio's text without a fault."""
    all_events = [outcome.events for outcome in outcomes]
    return StreamFigures(
        streams=len(outcomes),
        finished=sum(outcome.finished for outcome in outcomes),
        equal=sum(outcome.finished and outcome.text == references[outcome.audio.name] for outcome in outcomes),
        interrupted=sum(bool(outcome.lost_at) for outcome in outcomes),
        reconnections=sum(events.reconnects for events in all_events),
        by_ticket=sum(events.resumed for events in all_events),
        by_replay=sum(events.replayed for events in all_events),
        refused_tickets=dict(Counter(code for events in all_events for code in events.refused_tickets)),
        closes=dict(sorted(Counter(code for outcome in outcomes for code in outcome.closes).items())),
        refusals=dict(sorted(Counter(status for outcome in outcomes for status in outcome.statuses).items())),
        replayed_s=round(sum(events.replayed_s for events in all_events), 3),
        # Plain streams lose the audio after their end; only `judge` decides whether that counts.
        lost_s=round(sum(outcome.lost_s for outcome in outcomes), 3),
        problems=tuple(sorted({outcome.problem for outcome in outcomes if outcome.problem})[:MAX_PROBLEMS]),
    )


def resume_times(outcomes: Iterable[Outcome]) -> Latencies:
    """Return the times from detecting a loss to resuming the stream."""
    return _added(seconds for outcome in outcomes for seconds in outcome.events.resume_s)


def caught_up_times(outcomes: Iterable[Outcome]) -> Latencies:
    """Return the times from detecting a loss to sending all audio."""
    return _added(seconds for outcome in outcomes for seconds in outcome.events.caught_up_s)


def since(outcomes: Iterable[Outcome], fault_at: float) -> Latencies:
    """Return the times from the fault to the next connection, of each stream that lost its connection."""
    firsts = ([at for at in outcome.connected_at if at > fault_at] for outcome in outcomes if outcome.lost_at)
    return _added(min(ats) - fault_at for ats in firsts if ats)


def _added(seconds: Iterable[float]) -> Latencies:
    found = Latencies()
    for value in seconds:
        found.add(value)
    return found


def judge(resumable: StreamFigures, short: StreamFigures | None, *, same_version: bool = True) -> list[Criterion]:
    """Return the criteria: resumable streams lose nothing; plain ones shorter than the drain are not interrupted.

    Texts are compared only with `same_version`: another version may word the same audio differently.
    """
    unequal = Criterion("transcripts that differ from a run without faults", 0, resumable.finished - resumable.equal)
    bars = [
        Criterion("resumable streams that did not finish", 0, resumable.streams - resumable.finished),
        *([unequal] if same_version else ()),
        Criterion("audio lost", 0, resumable.lost_s, "s"),
        Criterion("faults without an interrupted stream", 0, int(not resumable.interrupted)),
    ]
    if short is not None:
        bars.append(
            Criterion("plain streams shorter than the drain closed with 1012", 0, short.closes.get(RESTARTED, 0))
        )
        bars.append(
            Criterion("plain streams shorter than the drain that did not finish", 0, short.streams - short.finished)
        )
    return bars


def merged(path: Path, run: FaultRun) -> Failover:
    """Return the document at `path` with this run instead of the last one of its kind; ignores an invalid document."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Failover).runs
    except (OSError, msgspec.DecodeError):
        kept = ()
    runs = {(each.proxy, each.fault): each for each in (*kept, run)}
    return Failover(tuple(runs[key] for key in sorted(runs)))


def markdown(document: Failover) -> str:
    """Return the page."""
    lines = ["# Failover", "", "Live streams through a real proxy while a replica fails. Criteria of each run:", ""]
    for run in document.runs:
        lines += [f"## {run.proxy}, {run.fault}", "", f"`{run.command}`", "", *table(run.bars), ""]
        lines += [f"{run.replicas} replicas, drain {run.drain_timeout_s:g} s.  ", _streams("Resumable", run.resumable)]
        lines += [_streams(name, kind) for name, kind in (("Short", run.short), ("Long", run.long)) if kind is not None]
        lines += [
            f"{name}: p50 {spread.p50:.0f}, p98 {spread.p98:.0f}, max {spread.max:.0f} ms of {spread.count}.  "
            for name, spread in (
                ("Loss to resumed", run.resume_ms),
                ("Loss to all audio sent", run.caught_up_ms),
                ("Fault to resumed", run.since_fault_ms),
            )
            if spread is not None
        ]
        lines += ["", *place_lines(run.environment), ""]
    return "\n".join(lines)


def _streams(name: str, kind: StreamFigures) -> str:
    closes = ", ".join(f"{count} by {code}" for code, count in kind.closes.items()) or "none"
    text = f"{name} streams: {kind.streams}, {kind.finished} finished, {kind.equal} equal word for word, "
    text += f"{kind.interrupted} lost a connection ({closes}); "
    text += f"{kind.by_ticket} times resumed by ticket, {kind.by_replay} from the last final, "
    return text + f"{kind.replayed_s:g} s sent again, {kind.lost_s:g} s lost.  "


def draw(document: Failover, path: Path) -> None:
    """Plot the distributions of the times to resume, with a line per run."""
    with picture(path, 1, 2, (11, 4.2)) as (left, right):
        for run in document.runs:
            for axes, cdf in ((left, run.resume_cdf), (right, run.since_fault_cdf)):
                if cdf:
                    milliseconds, shares = zip(*cdf, strict=True)
                    axes.step(milliseconds, shares, where="post", label=f"{run.proxy}, {run.fault}")
        left.set(xlabel="from loss to resumed, ms", ylabel="share of streams at or below", ylim=(0, 1))
        right.set(xlabel="from fault to resumed, ms", ylim=(0, 1))
