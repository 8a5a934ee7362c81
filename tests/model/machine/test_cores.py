"""Cores that a process may use, by the quotas of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model.machine.cores import cpu_quota, usable_cores


class Groups:
    """A tree of control groups, and the groups of a process."""

    def __init__(self, folder: Path) -> None:
        self.mount, self.membership = folder / "mount", folder / "cgroup"
        self.membership.write_text("0::/\n", encoding="utf-8")

    def belong(self, *lines: str) -> None:
        self.membership.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        (self.mount / path).parent.mkdir(parents=True, exist_ok=True)
        (self.mount / path).write_text(text, encoding="ascii")

    @property
    def quota(self) -> float | None:
        return cpu_quota(self.mount, self.membership)

    @property
    def cores(self) -> int:
        return usable_cores(self.mount, self.membership)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("50000 100000", 0.5), ("", None), ("x y", None), ("300000 100000\n", 3)]
)
def test_a_container_has_the_quota_of_its_root(groups: Groups, text: str, quota: float | None) -> None:
    groups.write("cpu.max", text)
    assert groups.quota == quota


def test_a_quota_limits_the_cores_and_leaves_at_least_one(groups: Groups) -> None:
    """A container of half a core on a large machine must not start processes for the machine."""
    allowed = len(os.sched_getaffinity(0))
    assert groups.cores == allowed
    groups.write("cpu.max", "50000 100000")
    assert groups.cores == 1
    groups.write("cpu.max", "99900000 100000")
    assert groups.cores == allowed


def test_a_service_has_the_least_quota_of_its_groups_and_those_above_them(groups: Groups) -> None:
    groups.belong("0::/system.slice/tutti.service")
    groups.write("system.slice/tutti.service/cpu.max", "800000 100000")
    assert groups.quota == 8
    groups.write("system.slice/cpu.max", "400000 100000")
    assert groups.quota == 4
    groups.write("system.slice/other.service/cpu.max", "100000 100000")
    assert groups.quota == 4


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_groups_of_version_1_have_quotas_too(groups: Groups, controllers: str) -> None:
    groups.belong("9:memory:/app", f"1:{controllers}:/app/one", "0::/")
    groups.write(f"{controllers}/cpu.cfs_quota_us", "-1\n")
    groups.write(f"{controllers}/cpu.cfs_period_us", "100000\n")
    assert groups.quota is None
    groups.write(f"{controllers}/app/cpu.cfs_quota_us", "250000\n")
    groups.write(f"{controllers}/app/cpu.cfs_period_us", "100000\n")
    assert groups.quota == 2.5
    groups.write("memory/app/cpu.cfs_quota_us", "1\n")
    assert groups.quota == 2.5


def test_a_container_that_sees_its_group_as_the_root_has_its_quota(groups: Groups) -> None:
    groups.belong("1:cpu,cpuacct:/docker/0123", "0::/docker/0123")
    groups.write("cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    groups.write("cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert groups.quota == 1.5


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "absent") is None
