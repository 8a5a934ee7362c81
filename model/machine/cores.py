"""Cores that this process may use: by its affinity, and by the CPU quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Return the number of cores that this process may use, at least 1.

    More threads than the quota would all stop for the rest of each period.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(mount, membership)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> float | None:
    """Return the least CPU quota of the process's control groups and those above them, in cores; None for no limit.

    `mount`: where the groups are mounted, of either version. `membership`: the process's groups, as in
    `/proc/self/cgroup`. Source: Linux, cgroup-v2.rst, cpu.max, and scheduler/sched-bwc.rst, cpu.cfs_quota_us.
    """
    quotas = [quota for folder in _folders(mount, membership) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(mount: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders that may have a quota; a container may see its own group as the root, so that is one too."""
    yield from (mount, mount / "cpu", mount / "cpu,cpuacct")
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.strip("/"))
        for each in (group, *group.parents):
            yield mount / controllers / each


def _quota(folder: Path) -> float | None:
    """Return the quota of one group in cores, of either version; None for no limit, or no such group."""
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None  # "max", or -1
    except (ValueError, ZeroDivisionError):
        return None
