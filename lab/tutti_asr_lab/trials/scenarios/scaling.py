"""Autoscaling with real replicas: the load doubles and falls, a loop starts and drains replicas by the chart's rule.

Starts replicas of `tutti serve` and HAProxy with the shipped file, and makes calls whose number doubles twice. Calls
are scheduled before the run, so that a slow server delays none of them.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np
import typer

from loadtest.errors import BadSettings
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.reports.criteria import Criterion
from tutti_asr_lab.trials.autoscaling import ScalingRule
from tutti_asr_lab.trials.figures import StreamFigures, figures
from tutti_asr_lab.trials.proxies import PROXIES, Proxy
from tutti_asr_lab.trials.replicas import CHEAP, environment
from tutti_asr_lab.trials.scaled_replicas import PLACES, PREFIX, Moment, Record, ScaledReplicas, ScaledTimes
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_plain, play_resumable, reference_texts
from tutti_asr_lab.trials.trial import Panel, TrialOptions, TrialReport, run_async, say

DOUBLES_IN_S = 120.0
"""Time in which the load doubles where the chart's autoscaler is to follow: docs/sizing.md."""

START_S, METRIC_AGE_S = 45.0, 30.0
"""In a cluster: from the decision for a replica until it is ready, and the age of the load that the autoscaler sees."""

OPENED_WITHIN_S = 2.0
"""Time in which the first calls open: real ones do not begin together."""

TICK_S = 0.1
SHORTEST, LONGEST = 0.5, 1.5
"""Lengths of calls, as shares of the mean: calls that all had one length would also end together."""

FLUSH_S = 5.0
"""Time beyond the longest call for a drain, so that a call that cannot resume ends by itself."""

REFUSED_AT_MOST, TOO_MANY_AT_MOST = 1.0, 33.4
"""Bars, in percent of the calls, and of the replicas that the rule wants for the load."""

REFUSED = 503
TEMPLATE = "    server-template replica- 16 replica:8080\n"
EMPTY = f"    server-template {PREFIX} 1-{PLACES} 127.0.0.1:1 disabled\n"
"""Places without replicas, for the loop to fill, instead of those that DNS fills."""

INTRO = """Real replicas of {} channels with HAProxy in front of them. The open calls ({}) double within {:g} s each
time, {:g} times faster than in a cluster, and all times of the chart's rule are as much shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Load and replicas of a run. All times of the autoscaler are shortened as the doubling is."""

    channels: Annotated[int, typer.Option(help="Channels of a replica.", min=1)] = 12
    calls: Annotated[int, typer.Option(help="Open calls at the beginning and at the end.", min=1)] = 6
    doublings: Annotated[int, typer.Option(help="How many times the calls double.", min=1)] = 2
    rise_s: Annotated[float, typer.Option(help="Seconds of each doubling; 120 in a cluster.", min=1.0)] = 40.0
    hold_s: Annotated[float, typer.Option(help="Seconds before and after each doubling.", min=1.0)] = 20.0
    call_s: Annotated[float, typer.Option(help="Mean length of a call, seconds.", min=1.0)] = 10.0
    plain: Annotated[float, typer.Option(help="Share of calls that cannot resume.", min=0.0, max=1.0)] = 0.25
    least: Annotated[int, typer.Option(help="Fewest replicas.", min=1)] = 1
    most: Annotated[int, typer.Option(help="Most replicas; 1: without scaling.", min=1)] = 3
    down_window_s: Annotated[
        float, typer.Option(help="Window of the rule for removals, seconds; 0: the chart's, shortened.", min=0.0)
    ] = 0.0
    audios: Annotated[int, typer.Option(help="Different audios, each played once without load.", min=1)] = 12

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.least > self.most:
            raise BadSettings(f"--most {self.most}: must be {self.least} or more replicas")

    @property
    def faster(self) -> float:
        """How many times faster than in a cluster everything goes."""
        return DOUBLES_IN_S / self.rise_s

    @property
    def rule(self) -> ScalingRule:
        """The chart's rule with shorter times."""
        rule = ScalingRule(least=self.least, most=self.most).faster(self.faster)
        return replace(rule, down_window_s=self.down_window_s or rule.down_window_s)

    @property
    def times(self) -> ScaledTimes:
        """Shortened times of a replica's start, of the load's age, and of a drain."""
        return ScaledTimes(START_S / self.faster, METRIC_AGE_S / self.faster, self.call_s * LONGEST + FLUSH_S)

    @property
    def profile(self) -> tuple[tuple[float, float], ...]:
        """Open calls by time, linear in between: doublings, a fall to the first number, time to remove replicas."""
        rule, points = self.rule, [(0.0, 0.0), (OPENED_WITHIN_S, float(self.calls))]
        removals_s = METRIC_AGE_S / self.faster + rule.down_window_s + 2 * rule.sync_s
        removals_s += (self.most - self.least) * rule.period_s
        peak = float(self.calls * 2**self.doublings)
        parts = [(self.hold_s, peak), (self.rise_s, float(self.calls)), (removals_s, float(self.calls))]
        for doubled in reversed(range(self.doublings)):
            low = float(self.calls * 2**doubled)
            parts = [(self.hold_s, low), (self.rise_s, 2 * low), *parts]
        for seconds, calls in parts:
            points.append((points[-1][0] + seconds, calls))
        return tuple(points)

    def open_calls(self, at_s: float) -> float:
        """Return the calls that should be open at a time."""
        at, calls = zip(*self.profile, strict=True)
        return float(np.interp(at_s, at, calls))

    def ideal(self, at_s: float) -> int:
        """Return the number of replicas that the rule wants for the planned load at a time."""
        rule = self.rule
        return max(rule.least, min(rule.most, rule.wanted(self.open_calls(at_s) / self.channels)))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the schedule."""

    at_s: float
    audio: int
    resumable: bool


def recordings(plan: Plan) -> list[Audio]:
    """Return audios of different lengths. Raises: AudioError."""
    longest = audios(plan.audios, plan.call_s * LONGEST, plan.seed)
    shares = np.linspace(SHORTEST, LONGEST, plan.audios)
    return [
        Audio(audio.name, audio.pcm[: round(plan.call_s * share * SAMPLE_RATE)])
        for audio, share in zip(longest, shares, strict=True)
    ]


def schedule(plan: Plan, lengths_s: Sequence[float]) -> list[Call]:
    """Return the calls by time: as many are open as planned if each lasts exactly its audio's length."""
    rng, ends_s, made = random.Random(plan.seed), list[float](), list[Call]()
    for tick in range(round(plan.profile[-1][0] / TICK_S)):
        now = tick * TICK_S
        while ends_s and ends_s[0] <= now:
            heapq.heappop(ends_s)
        for _ in range(round(plan.open_calls(now)) - len(ends_s)):
            audio = rng.randrange(len(lengths_s))
            made.append(Call(now, audio, resumable=rng.random() >= plan.plain))
            heapq.heappush(ends_s, now + lengths_s[audio])
    return made


def haproxy() -> Proxy:
    """Return HAProxy with the shipped file and empty places."""

    def emptied(text: str, _: Sequence[int]) -> str:
        if text.count(TEMPLATE) != 1:
            raise ValueError(f"{TEMPLATE.strip()!r} must occur exactly once")
        return text.replace(TEMPLATE, EMPTY)

    return replace(PROXIES["haproxy"], in_front_of=emptied)


def play(plan: Plan) -> TrialReport:
    """Scale real replicas with a load that doubles and falls; check refusals, transcripts and numbers of replicas."""
    return run_async(scaled(plan))


async def scaled(plan: Plan) -> TrialReport:
    """Run a plan. Raises: LoadTestError, HAProxyError."""
    played, over = recordings(plan), asyncio.Event()
    options = ["--threads", "1", "--max-streams", str(plan.channels), "--drain-timeout-s", f"{plan.times.drain_s:g}"]
    options += plan.serve_options
    with haproxy().running([]) as proxy:
        control = f"127.0.0.1:{proxy.ports.control}"
        replicas = ScaledReplicas(plan.rule, plan.times, control, options, environment() | CHEAP)
        async with replicas.running(plan.ideal(OPENED_WITHIN_S)):
            say(f"{len(played)} recordings without load …")
            texts = await reference_texts(proxy.url, played)
            loop = asyncio.create_task(replicas.follow(over))
            calls = schedule(plan, [audio.duration_s for audio in played])
            say(f"{len(calls)} calls in {plan.profile[-1][0]:.0f} s …")
            work = asyncio.create_task(make_calls(proxy.url, calls, played))
            await asyncio.wait({loop, work}, return_when=asyncio.FIRST_COMPLETED)
            if loop.done():  # by an error
                work.cancel()
                await loop
            outcomes = await work
            over.set()
            await loop
    resumable, plain = ([one for kind, one in outcomes if kind is wanted] for wanted in (True, False))
    return report_of(plan, resumable, plain, texts, replicas.record)


async def make_calls(url: str, calls: Sequence[Call], played: Sequence[Audio]) -> list[tuple[bool, Outcome]]:
    """Make each call at its time; returns the outcomes, with whether the call could resume."""
    began_s = asyncio.get_running_loop().time()

    async def one(call: Call) -> tuple[bool, Outcome]:
        await asyncio.sleep(began_s + call.at_s - asyncio.get_running_loop().time())
        play = play_resumable if call.resumable else play_plain
        return call.resumable, await play(url, played[call.audio])

    return await asyncio.gather(*(one(call) for call in calls))


def report_of(
    plan: Plan, resumable: Sequence[Outcome], plain: Sequence[Outcome], texts: dict[str, str], record: Record
) -> TrialReport:
    """Judge the outcomes of the calls and the record of the loop. A refused plain call was not accepted."""
    made = len(resumable) + len(plain)
    refused = sum(REFUSED in outcome.statuses for outcome in (*resumable, *plain))
    accepted = [outcome for outcome in plain if REFUSED not in outcome.statuses]
    kinds = {"Resumable": figures(resumable, texts), "Plain": figures(accepted, texts)}
    moments = [moment for moment in record.moments if moment.at_s <= plan.profile[-1][0]]
    gaps_s = [later.at_s - before.at_s for before, later in pairwise(moments)]
    existing = sum((each.ready + each.starting + each.draining) * s for each, s in zip(moments, gaps_s, strict=False))
    wanted = sum(plan.ideal(each.at_s) * gap_s for each, gap_s in zip(moments, gaps_s, strict=False))
    starts = ", ".join(f"{seconds:.1f}" for seconds in record.starts_s) or "none"
    calls = ", ".join(str(plan.calls * 2**doubled) for doubled in range(plan.doublings + 1))
    return TrialReport(
        title="Replicas scaled by load",
        intro=INTRO.format(plan.channels, calls, plan.rise_s, plan.faster),
        bars=tuple(judge(plan, 100 * refused / made, tuple(kinds.values()), moments, record)),
        lines=(
            f"{made} calls, {refused} refused; {record.drains} replicas drained.",
            f"Seconds from a decision until the replica took calls: {starts}.",
            f"Seconds of replicas: {existing:.1f}, of the ideal number {wanted:.1f}.",
            *(kind.line(name) for name, kind in kinds.items()),
        ),
        figures={**kinds, "drains": record.drains, "starts_s": record.starts_s, "moments": moments},
        panels=_panels(plan, moments),
        problems=(*kinds["Resumable"].problems, *kinds["Plain"].problems),
    )


def judge(
    plan: Plan, refused: float, streams: Sequence[StreamFigures], moments: Sequence[Moment], record: Record
) -> list[Criterion]:
    """Return the criteria. `refused`: percent of all calls; `streams`: accepted ones, resumable first."""
    too_many = missing = extra = None
    if moments:
        wanted = [plan.ideal(moment.at_s) for moment in moments]
        up = [moment.ready + moment.starting for moment in moments]
        peak_s = plan.profile[1 + 2 * plan.doublings][0]
        rising = [at for at, each in enumerate(moments) if OPENED_WITHIN_S <= each.at_s <= peak_s]
        too_many = max((100 * (up[at] / wanted[at] - 1) for at in rising), default=None)
        missing = max(wanted) - max(moment.ready for moment in moments)
        extra = up[-1] - wanted[-1]
    return [
        Criterion("calls refused", REFUSED_AT_MOST, round(refused, 2), "%"),
        Criterion("transcripts that differ", 0, sum(kind.finished - kind.equal for kind in streams)),
        Criterion("accepted calls that did not finish", 0, sum(kind.streams - kind.finished for kind in streams)),
        Criterion("audio of resumable calls lost", 0, streams[0].lost_s, "s"),
        Criterion("replicas too many while the load rises", TOO_MANY_AT_MOST, too_many, "%"),
        Criterion("replicas missing at the peak", 0, missing),
        Criterion("replicas too many at the end", 0, extra),
        Criterion("drained replicas with an exit code other than 0", 0, sum(code != 0 for code in record.codes)),
    ]


def _panels(plan: Plan, moments: Sequence[Moment]) -> tuple[Panel, ...]:
    at = tuple(moment.at_s for moment in moments)
    calls = {
        "planned calls": tuple(map(plan.open_calls, at)),
        "open channels": tuple(moment.open for moment in moments),
    }
    replicas = {name: tuple(getattr(moment, name) for moment in moments) for name in ("ready", "starting", "draining")}
    ideal = {"ideal": tuple(map(plan.ideal, at))}
    return (Panel("calls", "second", at, calls), Panel("replicas", "second", at, ideal | replicas))
