"""Storms of short clients, then streams that come steadily: a storm must not lower what the server lets in afterwards.

`python -m loadtest.storm` starts a server, sends a thousand clients within two seconds, each with 0.3 s of audio and
then gone, a few times, and then opens streams ten a second; writes `loadtest/results/storm.json` and `.md`. Owns the
order of work and the criteria.
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
from loadtest.hostile.raw_connection import Tally, Target
from loadtest.hostile.swarm import target_at
from loadtest.measurement.server_metrics import SESSIONS_MAX
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.served import get, served

NAME = "storm"
PATH = "/v1/listen?encoding=linear16&sample_rate=16000"
BYTES_PER_S = 32_000
SHORT_S = 0.3  # audio of a client of a storm
FRAME_S = 0.1
BETWEEN_S = 1.0  # storms: the answers to one are over before the next
LOST_SHARE = 0.05
"""Share of the limit before the storms that may be missing an idle minute later: a warm-up measures no better."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the storms, and of the steady arrivals after them."""

    clients: int = 1_000
    within_s: float = 2.0
    storms: int = 3
    streams: int = 200
    per_s: float = 10.0

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if min(self.clients, self.storms, self.streams) < 1 or min(self.within_s, self.per_s) <= 0:
            raise BadSettings("clients, storms, streams, --within-s and --per-s must be positive")


class Storm(msgspec.Struct, frozen=True):
    """The document."""

    command: str
    bars: tuple[Criterion, ...]
    storm_statuses: dict[int, int]
    steady_statuses: dict[int, int]
    limit_before: float
    limit_after_storms: float
    limit_after_minute: float


async def short_client(target: Target, begin_s: float) -> None:
    """Connect, send a little audio, and leave without a word."""
    await asyncio.sleep(begin_s)
    async with target.dial() as line:
        if await line.open_stream(PATH):
            await line.send(masked(BINARY, target.audio[: int(SHORT_S * BYTES_PER_S)]))
            line.reset()


async def storm(target: Target, plan: Plan) -> None:
    """Send all clients of one storm, and wait until they have gone."""
    begins_s = [number * plan.within_s / plan.clients for number in range(plan.clients)]
    await asyncio.gather(*(short_client(target, begin_s) for begin_s in begins_s), return_exceptions=True)


async def steady_stream(target: Target, begin_s: float, end_s: float) -> None:
    """Connect after `begin_s`, and send audio in real time until `end_s`."""
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
    """Open streams one after another; all stay open until the last has come."""
    begins_s = [number / plan.per_s for number in range(plan.streams)]
    await asyncio.gather(*(steady_stream(target, begin_s, begins_s[-1] + 2.0) for begin_s in begins_s))


def limit_of(port: int) -> float:
    """The server's limit of streams, as its metrics have it."""
    for line in get(port, "/metrics").decode().splitlines():
        if line.startswith(f"{SESSIONS_MAX} "):
            return float(line.split()[1])
    return 0.0


async def campaign(url: str, plan: Plan, command: str) -> Storm:
    """Storm, let streams arrive, then wait for an idle minute."""
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
        Criterion("streams that came steadily and were not let in", 0, plan.streams - statuses[101]),
        Criterion("share of the limit that is missing after an idle minute", LOST_SHARE, max(0.0, 1 - last / before)),
    )
    return Storm(command, bars, dict(stormy.tally.statuses), dict(statuses), before, after, last)


def markdown(found: Storm) -> str:
    """The page."""
    answers = ", ".join(f"{status}: {count}" for status, count in sorted(found.storm_statuses.items()))
    lines = ["# Storms of short clients", "", f"`{found.command}`", "", *table(found.bars), ""]
    lines += [f"Limit of streams: {found.limit_before:g} before, {found.limit_after_storms:g} after the last storm, "]
    lines[-1] += f"{found.limit_after_minute:g} an idle minute later. Answers to the storms: {answers}."
    return "\n".join([*lines, ""])


def run(plan: Plan, options: list[str], folder: Path, command: str) -> int:
    """Serve, campaign, print, write; returns the exit code. Raises: LoadTestError."""
    with (
        tempfile.TemporaryDirectory(prefix="tutti-") as name,
        served(options, Path(name) / "log") as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(campaign(url, plan, command))
    return conclude(found, found.bars, markdown(found), folder, NAME)


def main(
    *,
    clients: Annotated[int, typer.Option(help="Clients of a storm.")] = 1_000,
    within_s: Annotated[float, typer.Option(help="Seconds in which they all connect.")] = 2.0,
    storms: Annotated[int, typer.Option(help="Storms, one after another.")] = 3,
    streams: Annotated[int, typer.Option(help="Streams that come steadily afterwards.")] = 200,
    per_s: Annotated[float, typer.Option(help="How many of them come a second.")] = 10.0,
    serve_option: ServeOptions = None,
    folder: Folder = RESULTS,
) -> None:
    """Storm a server of our own with short clients, and see what it lets in afterwards."""

    def work(command: str) -> int:
        return run(Plan(clients, within_s, storms, streams, per_s), list(serve_option or ()), folder, command)

    carry_out("loadtest.storm", work)


if __name__ == "__main__":
    typer.run(main)
