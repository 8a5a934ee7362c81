"""What early ends of turns and their forks cost a loaded server: `python -m loadtest.benchmarks.forks`.

Starts a server and plays recordings with their pauses on live streams of `/v2/listen`, in rounds that alternate:
without ends by silence, so that no stream is forked, and with `EagerEndOfTurn`, whose words are those of a fork.
Compares the server's CPU time and the latency of `Update`, from when the last sample it names was due to its arrival.
Writes the figures as JSON and Markdown to a folder, by default `loadtest/results/`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtest.errors import LoadTestError
from loadtest.generator.connection import Dialer
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.recordings import load
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.measurement.server_metrics import FORKS, figures, scrape_at
from loadtest.program import RESULTS, Folder, Manifest, Seed, ServeOptions, carry_out
from loadtest.reports import environment, pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.rulers.playing import SPREAD_S, pieces, play
from loadtest.rulers.turns.takes import PATH, TIMEOUT_MS, FluxTake
from loadtest.served import ALL_IN, ONE_PROCESS, served
from tutti_asr_client.address import QueryValue, listen_url

NAME = "forks"
COST, LATENCY = 1.15, 1.2
"""Processor time and p98 of the latency with forks, as multiples of those without."""

RECORDINGS = 400
VARIETY = 100  # different sequences of recordings
SETTLE_S = 3.0  # after the last stream has begun, before anything is counted
QUERY: dict[str, QueryValue] = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": SAMPLE_RATE}
WITHOUT: dict[str, QueryValue] = {**QUERY, "eot_threshold": 1.0, "eot_timeout_ms": TIMEOUT_MS}
WITH: dict[str, QueryValue] = {**QUERY, "eager_eot_threshold": 0.5}  # Source: pipecat-ai 1.14.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Streams at once, seconds measured at each level, rounds, and the random seed."""

    streams: int = 300
    seconds: float = 30.0
    rounds: int = 3
    seed: int = 1


class Measured(msgspec.Struct, frozen=True):
    """One level: latency of `Update`, the server's processor time, forks a minute and stream, and what went wrong."""

    forks: bool
    latency: Spread
    cpu_cores: float
    forks_a_minute: float
    problems: dict[str, int]


class ForkCosts(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    bars: tuple[Criterion, ...]
    streams: int
    levels: tuple[Measured, ...]
    environment: Environment


CLOCK = time.perf_counter
console = Console(stderr=True, highlight=False)


class _Message(msgspec.Struct, frozen=True):
    type: str
    event: str = ""
    audio_window_end: float = 0.0


_decoder = msgspec.json.Decoder(_Message)


class _Take(FluxTake):
    """Several recordings in a row on one stream; the latencies of its `Update` messages once `counted` is set."""

    def __init__(self, frames: tuple[bytes, ...], latencies: Latencies, counted: asyncio.Event) -> None:
        super().__init__(frames)
        self._add, self._counted = latencies.add, counted

    def message(self, frame: bytes, now: float) -> None:
        """Note the latency of an update."""
        message = _decoder.decode(frame)
        if message.event == "Update" and self._counted.is_set():
            self._add(now - self._start_s - message.audio_window_end)
        self.over = self.over or message.type == "ConfigureSuccess"


def _audio(recordings: Sequence[bytes], seconds: float, dice: random.Random) -> tuple[bytes, ...]:
    """Return the pieces of recordings in random order, at least `seconds` of them."""
    size, found = round(seconds * SAMPLE_RATE) * 2, bytearray()
    while len(found) < size:
        found += dice.choice(recordings)
    return pieces(bytes(found))


async def level(url: str, recordings: Sequence[bytes], plan: Plan, *, forks: bool) -> Measured:
    """Measure one level. Raises: LoadTestError, OSError."""
    dice = random.Random(plan.seed)  # the same audio with and without forks
    # Each stream plays two of these, and both together last longer than what is measured.
    pool = [_audio(recordings, plan.seconds / 2 + SPREAD_S + SETTLE_S, dice) for _ in range(min(plan.streams, VARIETY))]
    latencies, counted = Latencies(), asyncio.Event()
    takes = (_Take(frames, latencies, counted) for frames in itertools.cycle(pool))
    dialer = await Dialer.to(listen_url(url, WITH if forks else WITHOUT).replace("/v1/listen", PATH), {}, CLOCK)
    playing = asyncio.create_task(play(takes, plan.streams, plan.streams, dialer, dice))
    before = await scrape_at(url, CLOCK() + SPREAD_S + SETTLE_S, CLOCK)
    counted.set()
    after = await scrape_at(url, CLOCK() + plan.seconds, CLOCK)
    counted.clear()
    problems = (await playing).problems
    latency, cpu_cores = latencies.spread(), figures(before, after).cpu_cores
    if latency is None:
        raise LoadTestError(f"no update arrived: {problems or 'fewer --streams may help'}")
    if cpu_cores is None:
        raise LoadTestError("the server did not report its CPU time in time: fewer --streams may help")
    made = after.values.get(FORKS, 0.0) - before.values.get(FORKS, 0.0)
    a_minute = 60 * made / (plan.streams * (after.at_s - before.at_s))
    return Measured(forks, latency, cpu_cores, round(a_minute, 1), dict(problems))


def measure(one_level: Callable[[bool], Measured], rounds: int) -> list[tuple[Measured, Measured]]:
    """Return each round's levels without and with forks; the order alternates, so that a drift affects both."""
    found = []
    for number in range(rounds):
        levels = {forks: one_level(forks) for forks in ((False, True) if number % 2 else (True, False))}
        found.append((levels[False], levels[True]))
        for one in found[-1]:
            console.print(f"round {number + 1}, {_forks(one)}: p98 {one.latency.p98:g} ms, {one.cpu_cores:.3f} cores")
    return found


def _forks(one: Measured) -> str:
    return f"{one.forks_a_minute:g} forks a minute and stream" if one.forks else "no forks"


def bars(rounds: Sequence[tuple[Measured, Measured]]) -> list[Criterion]:
    """Return medians of the rounds' ratios; each has a level without forks and one with them."""
    cost = statistics.median(forked.cpu_cores / plain.cpu_cores for plain, forked in rounds)
    late = statistics.median(forked.latency.p98 / plain.latency.p98 for plain, forked in rounds)
    return [
        Criterion("the server's CPU time with forks, as a multiple, median of rounds", COST, round(cost, 3)),
        Criterion("p98 of the latency with forks, as a multiple, median of rounds", LATENCY, round(late, 3)),
        Criterion("streams that failed", 0, sum(sum(one.problems.values()) for one in itertools.chain(*rounds))),
    ]


def markdown(found: ForkCosts) -> str:
    """Return the page."""
    heads = ("", "p50, ms", "p98, ms", "CPU cores of the server")
    cells = [
        (_forks(one), f"{one.latency.p50:g}", f"{one.latency.p98:g}", f"{one.cpu_cores:.3f}") for one in found.levels
    ]
    lines = ["# What forks cost", "", f"`{found.command}`", ""]
    lines += [
        f"{found.streams} live streams of `/v2/listen`. Latency: from when the last sample that an `Update` names was",
        "due to the arrival of the `Update`.",
        "",
    ]
    lines += [*pages.table(heads, cells), "", *table(found.bars), "", *pages.place_lines(found.environment), ""]
    return "\n".join(lines)


def main(
    *,
    streams: Annotated[int, typer.Option(help="Live streams.", min=1)] = 300,
    seconds: Annotated[float, typer.Option(help="Seconds measured at each level.", min=1)] = 30.0,
    rounds: Annotated[int, typer.Option(help="Rounds, each with and without forks.", min=1)] = 3,
    manifest: Manifest = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Measure what early ends of turns and their forks cost a loaded server."""

    def work(command: str) -> int:
        plan = Plan(streams, seconds, rounds, seed)
        recordings = [b"".join(one.messages) for one in load(manifest, level_s=seconds, at_most=RECORDINGS, seed=seed)]
        with (
            served([*ALL_IN, *ONE_PROCESS, *(serve_option or ())]) as url,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            pairs = measure(lambda forks: runner.run(level(url, recordings, plan, forks=forks)), rounds)
        found = bars(pairs)
        levels = tuple(itertools.chain(*pairs))
        result = ForkCosts(command, tuple(found), streams, levels, environment.describe(seed))
        return conclude(result, found, markdown(result), folder, NAME)

    carry_out("loadtest.benchmarks.forks", work)


if __name__ == "__main__":
    typer.run(main)
