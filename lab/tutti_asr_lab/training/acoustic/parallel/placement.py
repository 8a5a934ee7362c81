"""Where the processes of a run compute: their machines and cores, their order, and pinning to cores."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Location:
    """Machine of a process, its rank among the processes there, and the cores that it may use."""

    host: str
    local_rank: int
    cores: tuple[int, ...]

    @classmethod
    def here(cls, local_rank: int) -> Location:
        """Location of this process."""
        return cls(socket.gethostname(), local_rank, tuple(sorted(os.sched_getaffinity(0))))


def order_by_host(hosts: Sequence[str]) -> list[int]:
    """Ranks with the processes of each host next to each other, hosts in the order of their first process.

    torchrun and Ray number processes so already; MPI's launchers and hand-written ones may deal them out in turn.
    """
    return sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))


def share_of(cores: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """Cores of process `index` of `count`: an equal part without a core in common; all if there are too few.

    Hardware threads of one core stay together, so that two processes share a core only if there are more of them
    than cores.
    """
    if len(cores) < count:
        return tuple(cores)
    order = sorted(cores, key=_physical)
    return tuple(order[index * len(order) // count : (index + 1) * len(order) // count])


def pin(locations: Sequence[Location], rank: int) -> tuple[int, ...]:
    """Pin this process, and threads that it starts from now on, to its share of its machine's cores; return them."""
    own = locations[rank]
    here = [number for number, each in enumerate(locations) if each.host == own.host]
    cores = share_of(own.cores, here.index(rank), len(here))
    os.sched_setaffinity(0, cores)
    return cores


def described(locations: Sequence[Location]) -> str:
    """Processes by machine, for example `processes 0-3 on node0 (cores 0-3), 4-7 on node1 (cores 0-3)`."""
    parts = []
    for host, group in groupby(enumerate(locations), key=lambda each: each[1].host):
        members = list(group)
        ranks = _ranges([rank for rank, _ in members])
        cores = _ranges(sorted({core for _, each in members for core in each.cores}))
        parts.append(f"{ranks} on {host} (cores {cores})")
    return "processes " + ", ".join(parts)


def _physical(cpu: int) -> tuple[int, int, int]:
    """Socket, core and number of a hardware thread; threads of which the kernel says nothing count as cores."""
    try:
        names = ("physical_package_id", "core_id")
        socket_number, core = (int((CPUS / f"cpu{cpu}/topology/{name}").read_text()) for name in names)
    except (OSError, ValueError):
        return 0, cpu, cpu
    return socket_number, core, cpu


def _ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers as ranges: `0-3,6`."""
    groups = groupby(enumerate(numbers), key=lambda each: each[1] - each[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
