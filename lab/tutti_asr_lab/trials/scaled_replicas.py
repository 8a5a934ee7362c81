"""Control loop: reads the replicas' metrics, applies the autoscaler's rule, starts and drains replicas."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from deploy.ray.backends import Backend, Places, RuntimeApi, State
from loadtest import served
from loadtest.errors import ServerNotReady
from loadtest.measurement.server_metrics import SESSIONS, SESSIONS_MAX, metrics_at
from tutti_asr_lab.trials.autoscaling import AgedLoad, Autoscaler, ScalingRule, load_in_replicas
from tutti_asr_lab.trials.replicas import Replica
from tutti_asr_lab.trials.trial import say

LOOKS_EVERY_S = 0.5
"""Time between two readings of the metrics; the rule decides at its own interval."""

PLACES = 16
PREFIX = "replica-"  # of HAProxy's places, as in deploy/haproxy/haproxy.cfg


class ScaledTimes(msgspec.Struct, frozen=True):
    """Seconds from a decision until a replica is ready, age of the load that the rule sees, longest drain."""

    start_s: float
    metric_age_s: float
    drain_s: float


class Moment(msgspec.Struct, frozen=True):
    """The replicas at one time."""

    at_s: float
    load: float | None
    """Load in replicas that do not drain, by their metrics; None if none is ready."""
    seen: float | None
    """Load that the rule sees, which is older."""
    open: int
    """Open channels, of draining replicas too."""
    ready: int
    starting: int
    draining: int


@dataclass(slots=True, eq=False)
class _Member:
    name: str
    replica: Replica
    decided_s: float
    ready_s: float = math.inf
    draining: bool = False
    start: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self.ready_s < math.inf

    def ended(self) -> bool:
        """Whether its process has ended. Raises: ServerNotReady if it was not drained."""
        process = self.replica.process
        code = process.poll() if process is not None else None
        if code is not None and self.ready and not self.draining:
            raise ServerNotReady(f"{self.name} ended with {code} though it was not drained")
        return code is not None and self.draining


@dataclass(slots=True)
class Record:
    """What happened. `starts_s`: from each decision until the replica took calls; `codes`: of drained processes."""

    moments: list[Moment] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    drains: int = 0


class ScaledReplicas:
    """Replicas of `tutti serve` whose number follows the load. Times are seconds since `begin`."""

    def __init__(
        self,
        rule: ScalingRule,
        times: ScaledTimes,
        control: str,
        options: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """`control`: address of HAProxy's runtime API."""
        self.record = Record()
        self._rule, self._times = rule, times
        self._autoscaler = Autoscaler(rule)
        self._load = AgedLoad(times.metric_age_s)
        self._places, self._haproxy = Places(PLACES, prefix=PREFIX), RuntimeApi(control)
        self._options, self._environment = options, dict(environment)
        self._members: list[_Member] = []
        self._began_s = 0.0
        self._decides_s = 0.0
        self._started = 0

    @contextlib.asynccontextmanager
    async def running(self, number: int) -> AsyncIterator[None]:
        """Start `number` replicas; they and all later ones are killed on exit. Raises: ServerNotReady, HAProxyError."""
        try:
            first = [self._new(0.0) for _ in range(number)]
            await asyncio.gather(*(member.replica.start() for member in first))
            for member in first:
                member.ready_s = 0.0
            await self._update_haproxy()
            yield
        finally:
            for member in self._members:
                member.replica.remove()

    async def follow(self, over: asyncio.Event) -> None:
        """Run the loop until `over` is set. Raises: ServerNotReady, HAProxyError."""
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while not over.is_set():
                await self._turn(tasks)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), min(LOOKS_EVERY_S, self._rule.sync_s))

    def _now(self) -> float:
        return time.monotonic() - self._began_s

    async def _turn(self, tasks: asyncio.TaskGroup) -> None:
        """Read the metrics; decide when it is time; pass changes to HAProxy."""
        for member in [each for each in self._members if each.ended()]:
            self._members.remove(member)
            member.replica.remove()
        channels = await self._channels()
        load = load_in_replicas(channels[name] for name in self._takes_calls() if name in channels)
        now = self._now()
        seen = self._load.see(now, load)
        if now >= self._decides_s:
            self._decides_s += self._rule.sync_s
            self._scale(now, seen, tasks)
        await self._update_haproxy()
        ready, draining = len(self._takes_calls()), sum(member.draining for member in self._members)
        self.record.moments.append(
            Moment(
                at_s=round(now, 3),
                load=_rounded(load),
                seen=_rounded(seen),
                open=round(sum(active for active, _ in channels.values())),
                ready=ready,
                starting=len(self._members) - ready - draining,
                draining=draining,
            )
        )

    def _takes_calls(self) -> list[str]:
        return [member.name for member in self._members if member.ready and not member.draining]

    async def _channels(self) -> dict[str, tuple[float, float]]:
        """Return open and most channels of each ready replica that answers; a draining one may just have ended."""
        asked = [member for member in self._members if member.ready]
        answers = await asyncio.gather(*(asyncio.to_thread(_channels_of, member.replica.port) for member in asked))
        return {member.name: answer for member, answer in zip(asked, answers, strict=True) if answer is not None}

    def _scale(self, now: float, seen: float | None, tasks: asyncio.TaskGroup) -> None:
        kept = [member for member in self._members if not member.draining]
        wanted = self._autoscaler.decide(now, len(kept), seen)
        for _ in range(wanted - len(kept)):
            member = self._new(now)
            member.start = tasks.create_task(self._start(member))
        # As in the simulation and in Kubernetes: first those that are not ready, then those that became ready last.
        order = sorted(kept, key=lambda member: -member.ready_s)
        for member in order[: max(0, len(kept) - wanted)]:
            member.draining = True
            tasks.create_task(self._drain(member))

    def _new(self, now: float) -> _Member:
        self._started += 1
        replica = Replica(served.free_port(), self._options, self._environment)
        member = _Member(f"replica {self._started}", replica, now)
        self._members.append(member)
        return member

    async def _start(self, member: _Member) -> None:
        """Start a replica. It takes calls no sooner than a pod would, which has to be placed first."""
        say(f"{member.decided_s:.0f} s: {member.name} starting")
        await member.replica.start()
        await asyncio.sleep(member.decided_s + self._times.start_s - self._now())
        if not member.draining:
            member.ready_s = self._now()
            self.record.starts_s.append(round(member.ready_s - member.decided_s, 2))

    async def _drain(self, member: _Member) -> None:
        """Drain by SIGTERM, as Kubernetes and systemd do: resumable calls move, the others end by themselves."""
        say(f"{self._now():.0f} s: {member.name} draining")
        self.record.drains += 1
        if member.start is not None:
            await asyncio.wait({member.start})  # while it starts, a signal would end it
        self.record.codes.append(await member.replica.drained(self._times.drain_s))

    async def _update_haproxy(self) -> None:
        backends = {
            member.name: Backend(f"127.0.0.1:{member.replica.port}", State.DRAIN if member.draining else State.READY)
            for member in self._members
            if member.ready
        }
        for command in self._places.change(backends):
            await asyncio.to_thread(self._haproxy.send, command)


def _rounded(load: float | None) -> float | None:
    return None if load is None else round(load, 3)


def _channels_of(port: int) -> tuple[float, float] | None:
    """Return open and most channels by a replica's metrics; None if it does not answer."""
    try:
        values = metrics_at(port)
    except OSError:
        return None
    return (values[SESSIONS], values[SESSIONS_MAX]) if values.get(SESSIONS_MAX) else None
