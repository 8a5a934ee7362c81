"""The server's side of a level, from its `/metrics`: batch sizes and processor time.

Owns the two scrapes and their difference. Everything in it is optional: another server may not have it.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from clients.address import http_url
from loadtest.measures import ServerFigures

TIMEOUT_S = 2.0
WANTED = ("tutti_batches_total", "tutti_batch_rows_total", "process_cpu_seconds_total")

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


@dataclass(frozen=True, slots=True)
class Scrape:
    """The counters at one time."""

    at_s: float
    values: Mapping[str, float]


async def scrape_at(url: str, when_s: float, clock: Callable[[], float]) -> Scrape:
    """The counters of the server that `url` names at `when_s`; empty when it has none to show."""
    await asyncio.sleep(when_s - clock())
    try:
        text = await asyncio.to_thread(_fetch, http_url(url, "/metrics"))
        values = _read(text)
    except (OSError, http.client.HTTPException, ValueError):  # no server, no such page, not metrics
        values = {}
    return Scrape(clock(), values)


def figures(before: Scrape, after: Scrape) -> ServerFigures:
    """What happened between two scrapes."""
    grown = {name: after.values[name] - before.values[name] for name in before.values.keys() & after.values.keys()}
    batches = grown.get("tutti_batches_total", 0.0)
    rows = grown.get("tutti_batch_rows_total")
    cpu_s = grown.get("process_cpu_seconds_total")
    seconds = after.at_s - before.at_s
    return ServerFigures(
        mean_batch=round(rows / batches, 2) if rows is not None and batches else None,
        cpu_cores=round(cpu_s / seconds, 3) if cpu_s is not None and seconds > 0 else None,
    )


def _fetch(url: str) -> str:
    with _direct.open(url, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body.decode()


def _read(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in WANTED:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values
