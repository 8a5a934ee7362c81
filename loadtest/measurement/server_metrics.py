"""Figures of a level from the server's `/metrics`: batch sizes, CPU time, decoding time and memory.

Scrapes the metrics and computes differences. Every figure is optional: another server may not report it.
"""

from __future__ import annotations

import asyncio
import http.client
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from loadtest.generator.measures import ServerFigures
from loadtest.served import get, get_page
from tutti_asr_client.address import http_url

TIMEOUT_S = 2.0
MEMORY, DECODER_MEMORY = "process_resident_memory_bytes", "tutti_decoder_bytes"
SESSIONS, SLOTS, QUEUED, TASKS = (
    "tutti_sessions_active",
    "tutti_state_pool_slots_used",
    "tutti_batch_queue_depth",
    "tutti_event_loop_tasks",
)
SESSIONS_MAX, CAPACITY = "tutti_sessions_max", "tutti_estimated_session_capacity"
SLOWDOWN = "tutti_slowdown_ratio"
CPU_S = "process_cpu_seconds_total"
FILES = "process_open_fds"
FORKS = "tutti_forks_total"
BATCH_SIZES = "tutti_batch_size_bucket"
WANTED = (
    "tutti_batches_total",
    "tutti_batch_rows_total",
    CPU_S,
    "tutti_decode_seconds_sum",
    MEMORY,
    DECODER_MEMORY,
    SESSIONS,
    SLOTS,
    QUEUED,
    TASKS,
    SESSIONS_MAX,
    CAPACITY,
    SLOWDOWN,
    FILES,
    FORKS,
    BATCH_SIZES,
)


@dataclass(frozen=True, slots=True)
class Scrape:
    """Metrics at one time."""

    at_s: float
    values: Mapping[str, float]


async def scrape_at(url: str, when_s: float, clock: Callable[[], float]) -> Scrape:
    """Scrape the server at `url` at time `when_s`; empty if it has no metrics."""
    await asyncio.sleep(when_s - clock())
    try:
        page = await asyncio.to_thread(get_page, http_url(url, "/metrics"), TIMEOUT_S)
        values = read(page.decode())
    except (OSError, http.client.HTTPException, ValueError):  # no server, no such page, or not metrics
        values = {}
    return Scrape(clock(), values)


def figures(before: Scrape, after: Scrape) -> ServerFigures:
    """Return the figures of the time between two scrapes."""
    grown = {name: after.values[name] - before.values[name] for name in before.values.keys() & after.values.keys()}
    batches = grown.get("tutti_batches_total", 0.0)
    rows = grown.get("tutti_batch_rows_total")
    seconds = after.at_s - before.at_s
    return ServerFigures(
        mean_batch=round(rows / batches, 2) if rows is not None and batches else None,
        cpu_cores=_cores(grown.get(CPU_S), seconds),
        decode_cores=_cores(grown.get("tutti_decode_seconds_sum"), seconds),
        memory_mib=_mib(after.values.get(MEMORY)),
        decoder_mib=_mib(after.values.get(DECODER_MEMORY)),
        sessions=after.values.get(SESSIONS),
        limit=after.values.get(SESSIONS_MAX),
        slowdown=after.values.get(SLOWDOWN),
        batch_sizes=_batch_sizes(grown),
    )


def _batch_sizes(grown: Mapping[str, float]) -> dict[int, int] | None:
    """Return the number of batches by size class, from the cumulative buckets of the histogram."""
    edges = sorted(
        (float(edge), count)
        for name, _, edge in (key.partition("=") for key in grown)
        if name == BATCH_SIZES
        for count in (grown[f"{name}={edge}"],)
    )
    if not edges:
        return None
    sizes, before = dict[int, int](), 0.0
    for edge, count in edges:
        if math.isfinite(edge):
            sizes[round(edge)] = round(count - before)
        before = count
    return sizes


def _cores(spent_s: float | None, seconds: float) -> float | None:
    return None if spent_s is None or seconds <= 0 else round(spent_s / seconds, 4)


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / 2**20, 2)


def metrics_at(port: int) -> dict[str, float]:
    """Return the metrics of the server on this port. Raises: OSError if it does not answer; ValueError as `read`."""
    return read(get(port, "/metrics").decode())


def read(text: str) -> dict[str, float]:
    """Return the wanted samples of an exposition, summed over labels; buckets under `name=edge`.

    Other lines are not parsed, since parsing delays the thread that paces the streams.

    Raises:
        ValueError: not the Prometheus text format.
    """
    values: dict[str, float] = {}
    lines = "\n".join(line for line in text.splitlines() if line.startswith(WANTED))
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            name = f"{sample.name}={sample.labels['le']}" if sample.name == BATCH_SIZES else sample.name
            if sample.name in WANTED:
                values[name] = values.get(name, 0.0) + sample.value
    return values
