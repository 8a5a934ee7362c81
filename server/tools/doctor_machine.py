"""Checks of the installation and the machine, for `tutti doctor`. They write nothing but a temporary file."""

from __future__ import annotations

import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import combinations
from pathlib import Path

from packaging.requirements import Requirement

import server
from model.machine.cores import cpu_quota
from model.machine.runtime import threads_of
from server.configuration.addresses import bound_for, host_port
from server.configuration.variables import spelled
from server.errors import AddressError
from server.operations.process import files_needed
from server.settings import Settings
from server.tools.doctor import Check, Finding, fail, ok, warn

WANTED_FLAGS = ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16")
CLOCKS_APART_S = 2.0  # file times may be rounded to seconds
GIB = 2**30


def versions(_: Settings) -> Iterator[Finding]:
    """Check Python and the packages that the distribution requires."""
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    wrong: list[str] = []
    for text in requires("tutti-asr") or []:
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            wrong += _unmet(needed)
    if wrong:
        yield fail("packages", "; ".join(wrong), "pip install tutti-asr, or rebuild the image")
    else:
        yield ok("packages", f"tutti {version('tutti-asr')}, all required packages installed")


def _unmet(needed: Requirement) -> list[str]:
    try:
        found = version(needed.name)
    except PackageNotFoundError:
        return [f"{needed.name} is missing"]
    return [] if needed.specifier.contains(found, prereleases=True) else [f"{needed} is required, {found} is installed"]


def processor(settings: Settings) -> Iterator[Finding]:
    """Check usable cores, the CPU quota, and the instructions that decide the precision."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    values = dict(row.split(":", 1) for row in text.splitlines() if ":" in row)
    fields = {name.strip(): value.strip() for name, value in values.items()}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    named = fields.get("model name", platform.processor() or platform.machine())
    found = f"{named}, {cores} cores, {', '.join(f for f in WANTED_FLAGS if f in flags) or 'no AVX2'}"
    threads = threads_of(settings.threads)
    if quota is not None and threads > max(1, int(quota) - 1):
        advice = f"set {spelled('threads', max(1, int(quota) - 1))}: more threads would be throttled"
        yield warn("processor", f"{found}, but a quota of {quota:g} cores for {threads} threads", advice)
    elif cores < 2:  # the event loop and the model thread
        yield warn("processor", found, "use at least two cores: one for the event loop, one for the model")
    else:
        yield ok("processor", found)


def memory(_: Settings) -> Iterator[Finding]:
    """Check free memory; the check `model` compares it with the size of all stream states."""
    free = free_memory()
    found = f"{free / GIB:.1f} GiB free"
    yield ok("memory", found) if free > GIB else warn("memory", found, "model and libraries need about 1 GiB")


def free_memory() -> int:
    """Return free memory in bytes: the least of the machine's and the control group's."""
    rows = dict(row.split(":", 1) for row in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return free
    return min(free, limit - used)


def files(settings: Settings) -> Iterator[Finding]:
    """Check the limit of open files against the number of streams; the server raises the soft limit itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(settings.slots)
    found = f"{'no limit' if hard == resource.RLIM_INFINITY else hard} for {settings.slots} streams, {needed} needed"
    if hard != resource.RLIM_INFINITY and hard < needed:
        advice = f"raise it: ulimit -Hn {needed}, or LimitNOFILE= in systemd; or lower {spelled('max_streams')}"
        yield fail("open files", found, advice)
    else:
        yield ok("open files", found)


def ports(settings: Settings) -> Iterator[Finding]:
    """Check that the addresses to listen on are free."""
    for setting, port in settings.ports.items():
        if port:
            yield _port(setting, settings.host, port)
    for (first, port), (second, other) in combinations(settings.ports.items(), 2):
        if port and port == other:
            name = second.replace("_", " ")
            found = f"{port} is set both as the {first.replace('_', ' ')} and as the {name}"
            yield fail(name, found, f"choose another {spelled(second)}")


def _port(setting: str, host: str, port: int) -> Finding:
    name = setting.replace("_", " ")
    try:
        for listener in bound_for(setting, host, port):
            listener.close()
    except AddressError as error:
        found, _, advice = str(error).removeprefix(f"{setting}: ").partition("; ")
        return fail(name, found, advice)
    return ok(name, f"{host_port(host, port)} is free")


def wall_clock(_: Settings) -> Iterator[Finding]:
    """Check the wall clock, by which tokens and tickets expire."""
    with tempfile.NamedTemporaryFile() as file:
        apart_s = abs(os.fstat(file.fileno()).st_mtime - time.time())
    newest = max(path.stat().st_mtime for path in Path(server.__file__).parent.rglob("*.py"))
    now = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC"
    advice = "set it and run NTP: tokens and tickets expire by it"
    if apart_s > CLOCKS_APART_S:
        yield warn("wall clock", f"{now}, {apart_s:.0f} s apart from the timestamps of new files", advice)
    elif newest > time.time() + CLOCKS_APART_S:
        yield warn("wall clock", f"{now}, earlier than this installation", advice)
    else:
        yield ok("wall clock", now)


CHECKS: tuple[Check, ...] = (versions, processor, memory, files, ports, wall_clock)
