"""Bursts of short connections followed by steady arrivals: a burst must not lower the limit of streams afterwards.

`python -m tutti_asr_lab.trials.storm` starts a server, several times connects a thousand clients within two seconds
that send 0.3 s of audio and disconnect, then opens ten streams per second; writes `loadtest/results/storm.json` and
`.md`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtest.errors import BadSettings
from loadtest.generator.frames import BINARY, masked
from loadtest.measurement.server_metrics import SESSIONS_MAX, metrics_at
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.served import served
from tutti_asr_lab.trials.hostile.raw_connection import Tally, Target
from tutti_asr_lab.trials.hostile.swarm import target_at

NAME = "storm"
PATH = "/v1/listen?encoding=linear16&sample_rate=16000"
BYTES_PER_S = 32_000
SHORT_S = 0.3  # audio sent by a client of a storm
FRAME_S = 0.1
BETWEEN_S = 1.0  # between storms, so that all responses to one precede the next
LOST_SHARE = 0.05
"""Share by which the limit may be lower an idle minute after the storms: the precision of a warm-up."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the storms and of the steady arrivals after them."""

    clients: int = 1_000
    within_s: float = 2.0
    storms: int = 3
    streams: int = 200
    per_s: float = 10.0

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if min(self.clients, self.storms, self.streams) < 1 or min(self.within_s, self.per_s) <= 0:
            raise BadSettings("--clients, --storms, --streams, --within-s and --per-s must be positive")


class Storm(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    bars: tuple[Criterion, ...]
    storm_statuses: dict[int, int]
    steady_statuses: dict[int, int]
    limit_before: float
    limit_after_storms: float
    limit_after_minute: float


async def short_client(target: Target, begin_s: float) -> None:
    """Connect, send a little audio, and reset the connection."""
    await asyncio.sleep(begin_s)
    async with target.dial() as line:
        if await line.open_stream(PATH):
            await line.send(masked(BINARY, target.audio[: int(SHORT_S * BYTES_PER_S)]))
            line.reset()


async def storm(target: Target, plan: Plan) -> None:
    """Run all clients of one storm."""
    begins_s = [number * plan.within_s / plan.clients for number in range(plan.clients)]
    await asyncio.gather(*(short_client(target, begin_s) for begin_s in begins_s), return_exceptions=True)


async def steady_stream(target: Target, begin_s: float, end_s: float) -> None:
    """Connect after `begin_s` and send audio in real time until `end_s`."""
    loop = asyncio.get_running_loop()
    origin_s, size = loop.time(), int(FRAME_S * BYTES_PER_S)
    await asyncio.sleep(begin_s)
    async with target.dial() as line:
        if not await line.open_stream(PATH):
            return
        frames = [masked(BINARY, target.audio[at : at + size]) for at in range(0, len(target.audio) - size, size)]
        sent = 0
        while loop.time() < origin_s + end_s and await line.send(frames[sent % len(frames)]):
            sent += 1
            await asyncio.sleep(max(0.0, origin_s + begin_s + sent * FRAME_S - loop.time()))
        line.reset()


async def steady_streams(target: Target, plan: Plan) -> None:
    """Open streams one after another; all stay open until the last one is open."""
    begins_s = [number / plan.per_s for number in range(plan.streams)]
    await asyncio.gather(*(steady_stream(target, begin_s, begins_s[-1] + 2.0) for begin_s in begins_s))


def limit_of(port: int) -> float:
    """Return the server's limit of streams from its metrics."""
    return metrics_at(port).get(SESSIONS_MAX, 0.0)


async def campaign(url: str, plan: Plan, command: str) -> Storm:
    """Run the storms and the steady arrivals, then wait for an idle minute."""
    port, progress = urlsplit(url).port or 80, Console(stderr=True).print
    before = await asyncio.to_thread(limit_of, port)
    stormy = target_at(url, "none", Tally())
    for number in range(1, plan.storms + 1):
        await storm(stormy, plan)
        await asyncio.sleep(BETWEEN_S)
        after = await asyncio.to_thread(limit_of, port)
        progress(f"storm {number}: limit {before:g} before, {after:g} after it")
    steady = target_at(url, "none", Tally())
    await steady_streams(steady, plan)
    await asyncio.sleep(MINUTE_S)
    last = await asyncio.to_thread(limit_of, port)
    statuses = Counter(steady.tally.statuses)
    bars = (
        Criterion("steady streams that were refused", 0, plan.streams - statuses[101]),
        Criterion("decrease of the limit after an idle minute, as a share", LOST_SHARE, max(0.0, 1 - last / before)),
    )
    return Storm(command, bars, dict(stormy.tally.statuses), dict(statuses), before, after, last)


def markdown(found: Storm) -> str:
    """Return the page."""
    answers = ", ".join(f"{status}: {count}" for status, count in sorted(found.storm_statuses.items()))
    lines = ["# Storms of short clients", "", f"`{found.command}`", "", *table(found.bars), ""]
    lines += [f"Limit of streams: {found.limit_before:g} before, {found.limit_after_storms:g} after the last storm, "]
    lines[-1] += f"{found.limit_after_minute:g} an idle minute later. Responses to the storms: {answers}."
    return "\n".join([*lines, ""])


def run(plan: Plan, options: list[str], folder: Path, command: str) -> int:
    """Start a server, run the measurement, print, write; returns the exit code. Raises: LoadTestError."""
    with (
        tempfile.TemporaryDirectory(prefix="tutti-") as name,
        served(options, Path(name) / "log") as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(campaign(url, plan, command))
    return conclude(found, found.bars, markdown(found), folder, NAME)


def main(
    *,
    clients: Annotated[int, typer.Option(help="Clients per storm.")] = 1_000,
    within_s: Annotated[float, typer.Option(help="Seconds within which they connect.")] = 2.0,
    storms: Annotated[int, typer.Option(help="Number of storms.")] = 3,
    streams: Annotated[int, typer.Option(help="Steady streams afterwards.")] = 200,
    per_s: Annotated[float, typer.Option(help="Steady streams opened per second.")] = 10.0,
    serve_option: ServeOptions = None,
    folder: Folder = RESULTS,
) -> None:
    """Send bursts of short connections to a server, and measure which streams it accepts afterwards."""

    def work(command: str) -> int:
        return run(Plan(clients, within_s, storms, streams, per_s), list(serve_option or ()), folder, command)

    carry_out("tutti_asr_lab.trials.storm", work)


if __name__ == "__main__":
    typer.run(main)
