"""Environment of a measurement: machine, versions, commit, seed and date; `environment` in the JSON document."""

from __future__ import annotations

import datetime as dt
import os
import platform

import msgspec

from loadtest.reports.machine import commit, processor, versions

VERSIONS_OF = ("tutti-asr", "torch", "numpy", "numba", "uvicorn", "uvloop", "websockets", "pocketsphinx")


class Environment(msgspec.Struct, frozen=True):
    """Hardware, versions, commit, seed and date."""

    hardware: str
    cores: int
    system: str
    python: str
    versions: dict[str, str]
    commit: str
    seed: int
    date: str

    @property
    def summary(self) -> str:
        """All but versions and seed in one line."""
        return f"{self.hardware}, {self.cores} cores, Python {self.python}, commit {self.commit}, {self.date}"


def describe(seed: int) -> Environment:
    """Describe this machine, this checkout and the current time."""
    return Environment(
        hardware=processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=platform.platform(),
        python=platform.python_version(),
        versions=versions(VERSIONS_OF),
        commit=commit(),
        seed=seed,
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
