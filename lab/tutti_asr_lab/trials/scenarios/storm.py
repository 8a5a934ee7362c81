"""Bursts of short connections, then steady arrivals: a burst must not lower the limit of streams afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer

from loadtest.generator.frames import BINARY, masked
from loadtest.measurement.server_metrics import SESSIONS_MAX, metrics_at
from loadtest.reports.criteria import Criterion
from loadtest.served import served
from tutti_asr_lab.trials.hostile.raw_connection import Tally, Target
from tutti_asr_lab.trials.hostile.swarm import target_at
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, run_async, say

PATH = "/v1/listen?encoding=linear16&sample_rate=16000"
BYTES_PER_S = 32_000
SHORT_S = 0.3  # audio sent by a client of a storm
FRAME_S = 0.1
BETWEEN_S = 1.0  # between storms, so that all responses to one precede the next
LOST_SHARE = 0.05
"""Share by which the limit may be lower an idle minute after the storms: the precision of a warm-up."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Sizes of the storms and of the steady arrivals after them."""

    clients: Annotated[int, typer.Option(help="Clients per storm.", min=1)] = 1_000
    within_s: Annotated[float, typer.Option(help="Seconds within which they connect.", min=0.01)] = 2.0
    storms: Annotated[int, typer.Option(help="Number of storms.", min=1)] = 3
    streams: Annotated[int, typer.Option(help="Steady streams afterwards.", min=1)] = 200
    per_s: Annotated[float, typer.Option(help="Steady streams opened per second.", min=0.01)] = 10.0


def play(plan: Plan) -> TrialReport:
    """Send bursts of short connections to a server, and measure which streams it accepts afterwards."""
    with served(plan.serve_options) as url:
        return run_async(campaign(url, plan))


async def campaign(url: str, plan: Plan) -> TrialReport:
    """Run the storms and the steady arrivals, then wait for an idle minute."""

    async def limit() -> float:
        return (await asyncio.to_thread(metrics_at, urlsplit(url).port or 80)).get(SESSIONS_MAX, 0.0)

    stormy, steady, before, after = target_at(url, "none", Tally()), target_at(url, "none", Tally()), await limit(), 0.0
    for number in range(1, plan.storms + 1):
        begins_s = [client * plan.within_s / plan.clients for client in range(plan.clients)]
        await asyncio.gather(*(short_client(stormy, begin_s) for begin_s in begins_s), return_exceptions=True)
        await asyncio.sleep(BETWEEN_S)
        after = await limit()
        say(f"storm {number}: limit {before:g} before, {after:g} after it")
    begins_s = [number / plan.per_s for number in range(plan.streams)]
    await asyncio.gather(*(steady_stream(steady, begin_s, begins_s[-1] + 2.0) for begin_s in begins_s))
    await asyncio.sleep(MINUTE_S)
    last, statuses = await limit(), Counter(steady.tally.statuses)
    answers = ", ".join(f"{status}: {count}" for status, count in sorted(stormy.tally.statuses.items()))
    lowered = max(0.0, 1 - last / before)
    return TrialReport(
        title="Storms of short clients",
        bars=(
            Criterion("steady streams that were refused", 0, plan.streams - statuses[101]),
            Criterion("decrease of the limit after an idle minute, as a share", LOST_SHARE, lowered),
        ),
        lines=(
            f"Limit of streams: {before:g} before, {after:g} after the last storm, {last:g} an idle minute later.",
            f"Responses to the storms: {answers}.",
        ),
        figures={
            "storm_statuses": dict(stormy.tally.statuses),
            "steady_statuses": dict(statuses),
            "limits": (before, after, last),
        },
    )


async def short_client(target: Target, begin_s: float) -> None:
    """Connect, send a little audio, and reset the connection."""
    await asyncio.sleep(begin_s)
    async with target.dial() as line:
        if await line.open_stream(PATH):
            await line.send(masked(BINARY, target.audio[: int(SHORT_S * BYTES_PER_S)]))
            line.reset()


async def steady_stream(target: Target, begin_s: float, end_s: float) -> None:
    """Connect after `begin_s`, and send audio in real time until `end_s`, when the last stream is open."""
    origin_s, size = time.perf_counter(), int(FRAME_S * BYTES_PER_S)
    await asyncio.sleep(begin_s)
    async with target.dial() as line:
        if not await line.open_stream(PATH):
            return
        frames = [masked(BINARY, target.audio[at : at + size]) for at in range(0, len(target.audio) - size, size)]
        sent = 0
        while time.perf_counter() < origin_s + end_s and await line.send(frames[sent % len(frames)]):
            sent += 1
            await asyncio.sleep(max(0.0, origin_s + begin_s + sent * FRAME_S - time.perf_counter()))
        line.reset()
