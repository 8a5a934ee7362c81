"""Replicas that carry the calls of a day, in virtual time: arrivals, lengths, scaling, drains and failures.

Calls arrive as a Poisson process at the profile's rate and have exponentially distributed lengths. So the state is the
number of calls per replica, and all changes of a tick are drawn at once. The capacity of one replica is an input, from
the simulation with the real batcher (`planning.py`). The same seed gives the same day.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from tutti_asr_lab.simulation.autoscaling import AgedLoad, Autoscaler, ScalingRule, load_in_replicas
from tutti_asr_lab.simulation.profile import Profile

TICKS = 20
"""Ticks per mean call length; more are not needed: the slot of an ended call is freed half a tick too late."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Users and replicas. Times in seconds."""

    users: int
    limit: int
    """Channels that one replica carries."""
    stream_s: float = 60.0
    """Mean length of a call."""
    channels: int = 1
    """Channels of a call: 2 for stereo calls."""
    start_s: float = 45.0
    """From the decision for a replica until it is ready: its pod is placed, the server started, the model warm."""
    drain_s: float = 600.0
    """Longest time that a removed replica keeps its calls; the remaining ones are then cut."""
    resumable: float = 0.0
    """Share of calls that a removed replica hands to others at once."""
    failures_per_day: float = 0.5
    """Per replica; a failed replica is replaced."""
    metric_age_s: float = 30.0
    """Age of the load that the autoscaler sees: Prometheus reads the replicas at intervals."""
    rule: ScalingRule = ScalingRule()  # noqa: RUF009 - frozen
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if self.users < 1 or self.limit < self.channels or min(self.stream_s, self.tick_s) <= 0:
            raise ValueError("a day needs users, calls of some length, and replicas that carry at least one call")


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet at one time. Calls and refusals since the moment before."""

    at_s: float
    open: int
    """Open calls of all replicas, draining ones included."""
    ready: int
    """Replicas that take new calls."""
    starting: int
    draining: int
    fullest: int
    """Channels of the replica with the most."""
    needed: int
    """Replicas that the rule wants for the load of this moment."""
    calls: int
    refused: int
    moved: int
    """Calls that moved to another replica: those of failed replicas, and resumable ones of removed replicas."""
    cut: int
    """Calls that ended early: a drain took too long, or no other replica had room."""
    failures: int


@dataclass(slots=True, eq=False)
class _Replica:
    ready_s: float
    open: int = 0  # calls
    drains_until_s: float = math.inf

    @property
    def draining(self) -> bool:
        return self.drains_until_s < math.inf


@dataclass(slots=True)
class _Counts:
    calls: int = 0
    refused: int = 0
    moved: int = 0
    cut: int = 0
    failures: int = 0


class Fleet:
    """One simulated day, or another time."""

    def __init__(self, settings: FleetSettings, profile: Profile, seed: int = 1) -> None:
        """Start in the steady state of the profile's first rate: its calls, and the replicas that the rule wants for
        them.
        """
        self._settings = settings
        self._profile = profile
        self._rng: Generator = np.random.default_rng(seed)
        self._autoscaler = Autoscaler(settings.rule)
        self._room = settings.limit // settings.channels  # calls of one replica
        self._load = AgedLoad(settings.metric_age_s)
        self._decides_s = 0.0
        self._counts = _Counts()
        calls = round(settings.users * profile.speaking(0.0))
        wanted = self._wanted(calls)
        self._replicas = [_Replica(0.0) for _ in range(max(settings.rule.least, min(settings.rule.most, wanted)))]
        self._place(calls, self._ready(0.0))

    def run(self, every_s: float = 60.0) -> list[Moment]:
        """Simulate the profile's time; returns the moments at its end and `every_s` before."""
        tick_s, moments = self._settings.tick_s, []
        ticks = round(self._profile.seconds / tick_s)
        each = max(1, round(every_s / tick_s))
        for tick in range(1, ticks + 1):
            now = tick * tick_s
            self._end_calls(now)
            self._fail(now)
            self._arrive(now)
            self._scale(now)
            if tick % each == 0 or tick == ticks:
                moments.append(self._moment(now))
        return moments

    def _wanted(self, calls: int) -> int:
        settings = self._settings
        return settings.rule.wanted(calls * settings.channels / settings.limit)

    def _ready(self, now: float) -> list[_Replica]:
        return [replica for replica in self._replicas if replica.ready_s <= now and not replica.draining]

    def _end_calls(self, now: float) -> None:
        """End calls at random, and draining replicas that are empty or out of time."""
        ended = -math.expm1(-self._settings.tick_s / self._settings.stream_s)
        for replica, calls in zip(
            self._replicas, self._rng.binomial([each.open for each in self._replicas], ended).tolist(), strict=True
        ):
            replica.open -= calls
        for replica in [each for each in self._replicas if each.draining]:
            if not replica.open or replica.drains_until_s <= now:
                self._counts.cut += replica.open
                self._replicas.remove(replica)

    def _fail(self, now: float) -> None:
        """Some replicas fail: their calls go to others, and each is replaced by a new one."""
        settings = self._settings
        share = settings.failures_per_day * settings.tick_s / 86_400
        for replica in [each for each in self._replicas if each.ready_s <= now]:
            if share and self._rng.random() < share:
                self._replicas.remove(replica)
                self._counts.failures += 1
                if not replica.draining:
                    self._replicas.append(_Replica(now + settings.start_s))
                self._move(replica.open, now)

    def _arrive(self, now: float) -> None:
        settings = self._settings
        rate_hz = settings.users * self._profile.speaking(now) / settings.stream_s
        calls = int(self._rng.poisson(rate_hz * settings.tick_s))
        self._counts.calls += calls
        self._counts.refused += self._place(calls, self._ready(now))

    def _place(self, calls: int, ready: list[_Replica]) -> int:
        """Give each call to the replica with the fewest; return how many found none with room."""
        heap = [(replica.open, number) for number, replica in enumerate(ready)]
        heapq.heapify(heap)
        for left in range(calls, 0, -1):
            if not heap or heap[0][0] >= self._room:
                return left
            number = heap[0][1]
            ready[number].open += 1
            heapq.heapreplace(heap, (ready[number].open, number))
        return 0

    def _move(self, calls: int, now: float) -> None:
        lost = self._place(calls, self._ready(now))
        self._counts.cut += lost
        self._counts.moved += calls - lost

    def _scale(self, now: float) -> None:
        settings, rule = self._settings, self._settings.rule
        if now < self._decides_s:
            return
        self._decides_s = now + rule.sync_s
        ready = self._ready(now)
        load = load_in_replicas((settings.channels * replica.open, settings.limit) for replica in ready)
        kept = [replica for replica in self._replicas if not replica.draining]
        wanted = self._autoscaler.decide(now, len(kept), self._load.see(now, load))
        self._replicas += [_Replica(now + settings.start_s) for _ in range(wanted - len(kept))]
        # Kubernetes removes pods that are not ready first, then those that became ready last.
        order = sorted(kept, key=lambda replica: -replica.ready_s)
        for replica in order[: max(0, len(kept) - wanted)]:
            self._drain(replica, now)

    def _drain(self, replica: _Replica, now: float) -> None:
        replica.drains_until_s = now + self._settings.drain_s
        handed_on = int(self._rng.binomial(replica.open, self._settings.resumable))
        replica.open -= handed_on
        self._move(handed_on, now)

    def _moment(self, now: float) -> Moment:
        counts, self._counts = self._counts, _Counts()
        open_calls = sum(replica.open for replica in self._replicas)
        draining = sum(replica.draining for replica in self._replicas)
        ready = len(self._ready(now))
        return Moment(
            at_s=now,
            open=open_calls,
            ready=ready,
            starting=len(self._replicas) - ready - draining,
            draining=draining,
            fullest=self._settings.channels * max((replica.open for replica in self._replicas), default=0),
            needed=max(self._settings.rule.least, self._wanted(open_calls)),
            calls=counts.calls,
            refused=counts.refused,
            moved=counts.moved,
            cut=counts.cut,
            failures=counts.failures,
        )
