"""Checks of the machine, and of the addresses, keys and files that settings name, for `tutti doctor`. Read-only."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from model.errors import ModelError
from model.machine.cores import cpu_quota
from model.machine.runtime import threads_of
from server.app import FILES
from server.configuration.addresses import check_addresses, host_port
from server.configuration.variables import spelled
from server.errors import SettingsError
from server.operations.process import files_needed
from server.operations.start_message import said_of_admin, said_of_keys
from server.settings import Settings
from server.tools.doctor.findings import Check, Finding, fail, failed, ok, warn

WANTED_FLAGS = ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16")
GIB = 2**30


def installation(_: Settings) -> Iterator[Finding]:
    """Name the versions, for reports of defects."""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield ok("installation", f"tutti {version('tutti-asr')}, {python}")


def processor(settings: Settings) -> Iterator[Finding]:
    """Check usable cores, the CPU quota, and the instructions that decide the precision."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    values = dict(row.split(":", 1) for row in text.splitlines() if ":" in row)
    fields = {name.strip(): value.strip() for name, value in values.items()}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    named = fields.get("model name", platform.processor() or platform.machine())
    description = f"{named}, {cores} cores, {', '.join(f for f in WANTED_FLAGS if f in flags) or 'no AVX2'}"
    threads = threads_of(settings.threads)
    if quota is not None and threads > max(1, int(quota) - 1):
        advice = f"set {spelled('threads', max(1, int(quota) - 1))}: more threads would be throttled"
        yield warn("processor", f"{description}, but a quota of {quota:g} cores for {threads} threads", advice)
    elif cores < 2:  # the event loop and the model thread
        yield warn("processor", description, "use at least two cores: one for the event loop, one for the model")
    else:
        yield ok("processor", description)


def files(settings: Settings) -> Iterator[Finding]:
    """Check the limit of open files against the number of streams; the server raises the soft limit itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(settings.connected)
    known = "no limit" if hard == resource.RLIM_INFINITY else hard
    description = f"{known} for {settings.connected} streams, {needed} needed"
    if hard != resource.RLIM_INFINITY and hard < needed:
        advice = f"raise it: ulimit -Hn {needed}, or LimitNOFILE= in systemd; or lower {spelled('max_streams')}"
        yield fail("open files", description, advice)
    else:
        yield ok("open files", description)


def ports(settings: Settings) -> Iterator[Finding]:
    """Check that the ports differ and are free."""
    check_addresses(settings.addresses)
    free = [host_port(address.host, address.port) for address in settings.addresses.values() if address.port]
    yield ok("ports", f"free: {', '.join(free)}")


def keys(settings: Settings) -> Iterator[Finding]:
    """Check keys of all kinds, lists and small files, of which each has a message of its own; reads each file."""
    errors = []
    for read in FILES:
        try:
            read(settings)
        except (SettingsError, ModelError) as error:
            errors.append(failed("keys and files", error))
    yield from errors
    if errors:
        return
    if settings.api_keys or settings.api_keys_file is not None or settings.addresses["port"].is_local:
        yield ok("keys", said_of_keys(settings))
    else:
        advice = f"set {spelled('api_keys')} or {spelled('api_keys_file')}, unless the network is private"
        yield warn("keys", said_of_keys(settings), advice)
    yield ok("admin", said_of_admin(settings))


CHECKS: tuple[Check, ...] = (installation, processor, files, ports, keys)
