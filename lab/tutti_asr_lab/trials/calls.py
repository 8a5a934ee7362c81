"""Plan of a run, and its calls: a schedule made before the run, so that a slow server delays none of them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.errors import BadSettings
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_lab.simulation.autoscaling import ScalingRule
from tutti_asr_lab.simulation.fleet import FleetSettings
from tutti_asr_lab.simulation.profile import Profile
from tutti_asr_lab.trials.streams import Audio, audios

DOUBLES_IN_S = 120.0
"""Time in which the load doubles where the chart's autoscaler is to follow: docs/sizing.md."""

OPENED_WITHIN_S = 2.0
"""Time in which the first calls open: real ones do not begin together."""

TICK_S = 0.1
SHORTEST, LONGEST = 0.5, 1.5
"""Lengths of calls, as shares of the mean: calls that all had one length would also end together."""

DIFFERENT_AUDIOS = 12
"""Each is played once without load, which takes time."""

FLUSH_S = 5.0
"""Time beyond the longest call for a drain, so that a call that cannot resume ends by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Load and replicas of a run. All times of the autoscaler are shortened as the doubling is."""

    channels: int = 12  # of one replica
    calls: int = 6  # open ones, at the beginning and at the end
    doublings: int = 2
    rise_s: float = 40.0  # of each doubling, and of the fall
    hold_s: float = 20.0  # before and after each doubling
    call_s: float = 10.0  # mean length
    plain: float = 0.25  # share of calls that cannot resume
    least: int = 1
    most: int = 3
    down_window_s: float | None = None  # by default the rule's, shortened
    audios: int = DIFFERENT_AUDIOS
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if min(self.channels, self.calls, self.doublings, self.audios) < 1:
            raise BadSettings("--channels, --calls and --doublings must be at least 1")
        if min(self.rise_s, self.hold_s, self.call_s) <= 0 or not 0 <= self.plain <= 1:
            raise BadSettings("--rise-s, --hold-s and --call-s must be positive, and --plain from 0 to 1")
        if not 1 <= self.least <= self.most:
            raise BadSettings(f"--most {self.most}: must be {max(1, self.least)} or more replicas")

    @property
    def peak(self) -> int:
        """Open calls after the last doubling."""
        return int(self.calls * 2**self.doublings)

    @property
    def faster(self) -> float:
        """How many times faster than in a cluster everything goes."""
        return DOUBLES_IN_S / self.rise_s

    @property
    def rule(self) -> ScalingRule:
        """The chart's rule with shorter times."""
        rule = ScalingRule(least=self.least, most=self.most).faster(self.faster)
        return rule if self.down_window_s is None else replace(rule, down_window_s=self.down_window_s)

    @property
    def settings(self) -> FleetSettings:
        """Settings of the simulated fleet with the same times: start of a replica, age of the load, drain."""
        assumed = FleetSettings(users=self.peak, limit=self.channels, stream_s=self.call_s, rule=self.rule)
        return replace(
            assumed,
            start_s=assumed.start_s / self.faster,
            metric_age_s=assumed.metric_age_s / self.faster,
            drain_s=self.call_s * LONGEST + FLUSH_S,
            resumable=1 - self.plain,
        )

    @property
    def profile(self) -> Profile:
        """Shares of the peak's calls: doublings, a fall to the first number, and time to remove replicas."""
        low = self.calls / self.peak
        points = [(0.0, 0.0), (OPENED_WITHIN_S, low)]

        def then(seconds: float, share: float) -> None:
            points.append((points[-1][0] + seconds, share))

        for doubled in range(self.doublings):
            then(self.hold_s, low * 2**doubled)
            then(self.rise_s, low * 2 ** (doubled + 1))
        then(self.hold_s, 1.0)
        then(self.rise_s, low)
        rule = self.rule
        removals = self.most - self.least
        then(self.settings.metric_age_s + rule.down_window_s + removals * rule.period_s + 2 * rule.sync_s, low)
        at_s, shares = zip(*points, strict=True)
        return Profile(at_s, shares)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the schedule."""

    at_s: float
    audio: int
    resumable: bool


def recordings(plan: Plan) -> list[Audio]:
    """Return audios of different lengths. Raises: AudioError."""
    longest = audios(plan.audios, plan.call_s * LONGEST, plan.seed)
    steps = max(1, plan.audios - 1)
    shares = [SHORTEST + (LONGEST - SHORTEST) * number / steps for number in range(plan.audios)]
    lengths = [round(plan.call_s * share * SAMPLE_RATE) for share in shares]
    return [Audio(audio.name, audio.pcm[:length]) for audio, length in zip(longest, lengths, strict=True)]


def schedule(plan: Plan, lengths_s: Sequence[float]) -> list[Call]:
    """Return the calls by time: as many are open as the profile says if each lasts exactly its audio's length."""
    profile, rng = plan.profile, random.Random(plan.seed)
    ends_s: list[float] = []
    made: list[Call] = []
    for tick in range(round(profile.seconds / TICK_S)):
        now = tick * TICK_S
        while ends_s and ends_s[0] <= now:
            heapq.heappop(ends_s)
        for _ in range(round(plan.peak * profile.speaking(now)) - len(ends_s)):
            audio = rng.randrange(len(lengths_s))
            made.append(Call(now, audio, resumable=rng.random() >= plan.plain))
            heapq.heappush(ends_s, now + lengths_s[audio])
    return made
