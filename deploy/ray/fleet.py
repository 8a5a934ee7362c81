"""Life cycle of the replicas: starting, ready, draining, gone. Pure: times and figures are arguments, orders results.

A replica that does not answer for a while, or never gets ready, is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.ray.backends import Backend, State
from deploy.ray.replica import Figures
from deploy.ray.scaling import Load, Rule, Scaling


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a replica counts as lost: from its start without getting ready, and without an answer."""

    start_s: float = 180.0
    silent_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for the controller: replicas to start, to drain, to end at once because they are lost."""

    start: int
    drain: tuple[str, ...]
    end: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    since_s: float
    heard_s: float
    figures: Figures | None = None
    draining: bool = False
    was_ready: bool = False


class Fleet:
    """The members by name."""

    def __init__(self, rule: Rule, timeouts: Timeouts) -> None:
        self._scaling = Scaling(rule)
        self._timeouts = timeouts
        self._members: dict[str, _Member] = {}

    def started(self, name: str, now: float) -> None:
        """A replica was started."""
        self._members[name] = _Member(now, now)

    def gone(self, name: str) -> None:
        """A replica was ended, or Ray says that it is lost."""
        self._members.pop(name, None)

    def answered(self, name: str, figures: Figures, now: float) -> None:
        """A replica's actor answered. Without figures of the server in it, the replica counts as silent."""
        member = self._members[name]
        member.figures = figures
        if figures.ended:
            self.gone(name)
        elif figures.limit:
            member.heard_s = now
            member.was_ready |= figures.ready

    def orders(self, now: float) -> Orders:
        """The orders that follow from all answers so far."""
        lost = tuple(name for name, member in self._members.items() if self._is_lost(member, now))
        for name in lost:
            self.gone(name)
        staying = {name: member for name, member in self._members.items() if not member.draining}
        loads = [Load(m.figures.active, m.figures.limit) for m in staying.values() if m.was_ready and m.figures]
        wanted = self._scaling.wanted(loads, len(staying), now)
        leaving = self._emptiest(staying, len(staying) - wanted)
        for name in leaving:
            staying[name].draining = True
        return Orders(max(0, wanted - len(staying)), leaving, lost)

    def drain_all(self) -> tuple[str, ...]:
        """Drain all; returns those that did not drain yet."""
        names = tuple(name for name, member in self._members.items() if not member.draining)
        for name in names:
            self._members[name].draining = True
        return names

    @property
    def backends(self) -> Mapping[str, Backend]:
        """HAProxy's servers: replicas that were ready once. Those that drain get no new streams."""
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
            return now - member.heard_s > self._timeouts.silent_s
        return now - member.since_s > self._timeouts.start_s

    def _emptiest(self, staying: Mapping[str, _Member], count: int) -> tuple[str, ...]:
        def streams(name: str) -> int:
            figures = staying[name].figures
            return figures.active if figures is not None else 0

        return tuple(sorted(staying, key=streams)[: max(0, count)])
