"""Resources left after a load, from the server's metrics: sessions, slots, steps, tasks and memory.

Waits until the server is idle and compares. A figure that the server does not report counts as missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from loadtest.measurement.server_metrics import MEMORY, QUEUED, SESSIONS, SLOTS, TASKS, Scrape, scrape_at
from loadtest.reports.criteria import Criterion

LOOK_EVERY_S = 0.2
MEMORY_SHARE = 0.01
"""Allowed growth of the server's memory under an equal load: memory retained by the allocator."""


class IdleFigures(msgspec.Struct, frozen=True):
    """Figures from the server's metrics; None for those that it does not report."""

    sessions: float | None
    slots: float | None
    queued_steps: float | None
    tasks: float | None
    memory_mib: float | None

    @classmethod
    def of(cls, scrape: Scrape) -> IdleFigures:
        """Return the figures of a scrape."""
        found, memory = scrape.values.get, scrape.values.get(MEMORY)
        memory_mib = None if memory is None else round(memory / 2**20, 2)
        return cls(found(SESSIONS), found(SLOTS), found(QUEUED), found(TASKS), memory_mib)


async def idle_figures(
    url: str, clock: Callable[[], float], *, within_s: float, tasks: float | None = None
) -> IdleFigures:
    """Return the figures once nothing is left (and at most `tasks` tasks, if given), or after `within_s`."""
    end_s = clock() + within_s
    while True:
        found = IdleFigures.of(await scrape_at(url, clock(), clock))
        left = (found.sessions, found.slots, found.queued_steps)
        quiet = tasks is None or found.tasks is None or found.tasks <= tasks
        if (quiet and not any(left)) or clock() >= end_s:
            return found
        await asyncio.sleep(LOOK_EVERY_S)


def judge_leftovers(before: IdleFigures, after: IdleFigures, *, memory_share: float = MEMORY_SHARE) -> list[Criterion]:
    """Return the criteria: nothing of the load is left, and memory is as after an equal load before."""
    memory_mib = before.memory_mib or 0.0
    return [
        Criterion("sessions left", 0, after.sessions),
        Criterion("slots left", 0, after.slots),
        Criterion("steps left in the queue", 0, after.queued_steps),
        Criterion("tasks", before.tasks or 0, after.tasks),
        Criterion("memory", round(memory_mib * (1 + memory_share), 1), after.memory_mib, "MiB"),
    ]
