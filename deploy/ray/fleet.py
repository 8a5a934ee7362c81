"""Number of replicas for the load, and their life cycle. Pure: takes times and figures, returns orders.

A replica that does not answer for some time, or does not become ready, counts as lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy.ray.backends import Backend, State
from deploy.ray.replica import Figures


@dataclass(frozen=True, slots=True)
class Rule:
    """Scaling rule. `share`: target load as a share of the limits."""

    least: int = 1
    most: int = 4
    share: float = 0.7
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not 1 <= self.least <= self.most:
            raise ValueError(
                f"--least {self.least}, --most {self.most}: must be 1 replica or more, with --least <= --most"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"--share {self.share:g}: must be above 0 and at most 1")


class Scaling:
    """Applies the rule; records since when fewer replicas suffice.

    Scales up at once, because callers wait; down slowly, one at a time, because streams must end or move first.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._fewer_since_s: float | None = None

    def wanted(self, loads: Sequence[Figures], present: int, now: float) -> int:
        """Return the wanted number of replicas; `present` are running or starting, `loads` are of running ones."""
        if not loads:
            return max(self.rule.least, present)
        enough = min(max(self._needed(loads), self.rule.least), self.rule.most)
        if enough >= present:
            self._fewer_since_s = None
            return enough
        if self._fewer_since_s is None:
            self._fewer_since_s = now
        if now - self._fewer_since_s < self.rule.down_after_s:
            return present
        self._fewer_since_s = now  # the next replica drains after another `down_after_s`
        return present - 1

    def _needed(self, loads: Sequence[Figures]) -> int:
        each = sum(load.limit for load in loads) / len(loads)
        return math.ceil(sum(load.active for load in loads) / (each * self.rule.share)) if each else 1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a replica counts as lost: from its start if it is not ready, and since its last answer."""

    start_s: float = 180.0
    silent_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for the controller: number of replicas to start; replicas to drain; lost replicas to end."""

    start: int
    drain: tuple[str, ...]
    end: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    since_s: float
    answered_s: float
    figures: Figures | None = None
    draining: bool = False
    was_ready: bool = False


class Fleet:
    """The replicas by name."""

    def __init__(self, rule: Rule, timeouts: Timeouts) -> None:
        self._scaling = Scaling(rule)
        self._timeouts = timeouts
        self._members: dict[str, _Member] = {}

    def started(self, name: str, now: float) -> None:
        """A replica was started."""
        self._members[name] = _Member(now, now)

    def gone(self, name: str) -> None:
        """A replica was ended, or Ray reported it lost."""
        self._members.pop(name, None)

    def answered(self, name: str, figures: Figures, now: float) -> None:
        """A replica's actor answered. Without figures of the server, the replica counts as silent."""
        member = self._members[name]
        member.figures = figures
        if figures.ended:
            self.gone(name)
        elif figures.limit:
            member.answered_s = now
            member.was_ready |= figures.ready

    def orders(self, now: float) -> Orders:
        """Return the orders that follow from all answers so far."""
        lost = tuple(name for name, member in self._members.items() if self._is_lost(member, now))
        for name in lost:
            self.gone(name)
        staying = {name: member for name, member in self._members.items() if not member.draining}
        loads = [m.figures for m in staying.values() if m.was_ready and m.figures]
        wanted = self._scaling.wanted(loads, len(staying), now)
        leaving = self._emptiest(staying, len(staying) - wanted)
        for name in leaving:
            staying[name].draining = True
        return Orders(max(0, wanted - len(staying)), leaving, lost)

    def drain_all(self) -> tuple[str, ...]:
        """Mark all replicas as draining; returns those that were not."""
        names = tuple(name for name, member in self._members.items() if not member.draining)
        for name in names:
            self._members[name].draining = True
        return names

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Servers for HAProxy: replicas that have been ready. Draining ones get no new streams."""
        return {
            name: Backend(member.figures.address, State.DRAIN if member.draining else State.READY)
            for name, member in self._members.items()
            if member.was_ready and member.figures is not None
        }

    @property
    def summary(self) -> str:
        """One line for the log."""
        members = self._members.values()
        streams = sum(member.figures.active for member in members if member.figures is not None)
        room = sum(m.figures.limit for m in members if m.figures is not None and not m.draining)
        leaving = sum(member.draining for member in members)
        return f"{len(members)} replicas, {leaving} of them draining; {streams} streams of {room}"

    def __len__(self) -> int:
        return len(self._members)

    def _is_lost(self, member: _Member, now: float) -> bool:
        if member.was_ready:
            return now - member.answered_s > self._timeouts.silent_s
        return now - member.since_s > self._timeouts.start_s

    def _emptiest(self, staying: Mapping[str, _Member], count: int) -> tuple[str, ...]:
        def streams(name: str) -> int:
            figures = staying[name].figures
            return figures.active if figures is not None else 0

        return tuple(sorted(staying, key=streams)[: max(0, count)])
