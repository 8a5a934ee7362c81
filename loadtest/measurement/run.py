"""`tutti loadtest`: measures a running server level by level.

Handles Ctrl-C and the exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
import uvloop
from rich.console import Console

from loadtest.generator import recordings
from loadtest.generator.composition import even_lengths_s, exponential_lengths_s, write_streams
from loadtest.generator.connection import Dialer
from loadtest.generator.level import Level, Schedule, Traffic
from loadtest.generator.measures import LevelMeasures, LevelReport, ServerFigures, minutes_in
from loadtest.generator.recordings import Recording
from loadtest.generator.settings import SAMPLE_RATE, STEP_S, Arrivals, LoadSettings
from loadtest.generator.uploads import UPLOAD_S, Uploads, wav
from loadtest.measurement import plot
from loadtest.measurement.report import Document, Result, faults, print_table
from loadtest.measurement.server_metrics import Scrape, figures, scrape_at
from loadtest.program import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK, exit_code
from loadtest.reports import environment
from tutti_asr_client.address import QueryValue, listen_url
from tutti_asr_client.files.transcriber import RemoteTranscriber

COMPOSED = 16
"""Number of distinct composed streams: each is first recognized without load, which takes time."""

QUERY: dict[str, QueryValue] = {
    "encoding": "linear16",
    "sample_rate": SAMPLE_RATE,
    "interim_results": True,
    "step_results": True,
}

THRESHOLDS = (10_000, 50, 1_000)
"""Garbage collection thresholds: young objects only, almost never a full collection."""

Clock = Callable[[], float]
Progress = Callable[[str], None]
Alongside = Callable[[Schedule], Awaitable[None]]
"""A task that runs during a level and is canceled at its end."""


def run_loadtest(settings: LoadSettings, *, as_json: bool = False, plot_path: Path | None = None) -> int:
    """Run, print (a table, or progress on stderr and one JSON document last) and plot; returns the exit code."""
    return exit_code("loadtest", lambda: _run_and_report(settings, Console(stderr=as_json), as_json, plot_path))


def _run_and_report(settings: LoadSettings, console: Console, as_json: bool, plot_path: Path | None) -> int:
    result = measure(settings, progress=console.print)
    print_table(result.document, console)
    if plot_path is not None:
        plot.draw(settings.policy_label, result, plot_path)
    if as_json:
        typer.echo(result.document.encoded())
    if result.document.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_BAD if any(faults(level) for level in result.document.levels) else EXIT_OK


def measure(settings: LoadSettings, *, progress: Progress, alongside: Alongside | None = None) -> Result:
    """Run all levels; the first Ctrl-C ends the current level and keeps its results.

    Raises:
        LoadTestError, ClientError: it could not start.
        KeyboardInterrupt: interrupted before the first level.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure_levels(settings, progress=progress, alongside=alongside))


async def measure_levels(
    settings: LoadSettings, *, progress: Progress, clock: Clock = time.perf_counter, alongside: Alongside | None = None
) -> Result:
    """Like `measure`, in a running event loop."""

    def speaking(language: str) -> RemoteTranscriber:
        url = listen_url(settings.url, {"language": language} if language else {})
        return RemoteTranscriber(url, api_key=settings.api_key, sample_rate=SAMPLE_RATE)

    with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
        played = _recordings(settings, Path(folder))
        progress(f"{len(played)} recordings, each first without load")
        texts = await recordings.reference_texts(played, speaking)
    query = QUERY | {"latency": True} if settings.split else QUERY
    dialer = await Dialer.to(listen_url(settings.url, query), settings.api_key, clock)
    load = _Load(settings, played, texts, dialer, clock, alongside)
    levels: list[tuple[LevelReport, LevelMeasures]] = []
    with _stopping_on_interrupt() as stop:
        for streams, seconds in settings.levels:
            if stop.is_set():
                break
            progress(f"{streams} streams for {settings.warmup_s:g} + {seconds:g} s")
            levels.append(await load.run_level(streams, seconds, stop))
            if _beyond(levels[-1][0], settings.give_up_ms):
                progress(f"p98 above {settings.give_up_ms:g} ms: no higher level")
                break
    reports = tuple(report for report, _ in levels)
    document = Document(reports, environment.describe(settings.seed), stop.is_set())
    cdfs = tuple(tuple(measures.chunk.cdf()) for _, measures in levels)
    return Result(document, cdfs, tuple(measures.minutes for _, measures in levels))


def _beyond(level: LevelReport, give_up_ms: float | None) -> bool:
    chunk = level.chunk_latency_ms
    return give_up_ms is not None and (chunk is None or chunk.p98 > give_up_ms)


def _recordings(settings: LoadSettings, folder: Path) -> tuple[Recording, ...]:
    """Return the recordings, or composed streams of the given length.

    All composed streams are played even in a short level: without the longer ones all would end together.
    """
    manifest, level_s = settings.manifest, min(seconds for _, seconds in settings.levels)
    if settings.stream_s is not None:
        lengths_s = exponential_lengths_s if settings.arrivals is Arrivals.CHURN else even_lengths_s
        manifest = write_streams(folder, lengths_s(settings.stream_s, COMPOSED), settings.seed, manifest)
        level_s = math.inf
    return recordings.load(manifest, level_s=level_s, at_most=settings.max_recordings, seed=settings.seed)


@dataclass(frozen=True, slots=True)
class _Load:
    """Settings, recordings and clock shared by all levels of a load test."""

    settings: LoadSettings
    played: Sequence[Recording]
    texts: Mapping[str, str]
    dialer: Dialer
    clock: Clock
    alongside: Alongside | None

    async def run_level(self, streams: int, seconds: float, stop: asyncio.Event) -> tuple[LevelReport, LevelMeasures]:
        settings, clock = self.settings, self.clock
        gc.collect()
        gc.freeze()  # a full collection during a level would add to the latency
        gc.set_threshold(*THRESHOLDS)
        schedule = Schedule.starting(clock(), warmup_s=settings.warmup_s, seconds=seconds)
        measures = LevelMeasures(schedule.from_s, schedule.end_s, self.texts, settings.period_s)
        rng = random.Random(f"{settings.seed}/{streams}")
        level = Level(
            schedule,
            measures,
            recordings=self.played,
            dialer=self.dialer,
            rng=rng,
            clock=clock,
            traffic=Traffic(
                settings.arrivals, settings.retry, settings.long_steps, under_way=settings.stream_s is not None
            ),
        )
        uploads = Uploads(settings.url, wav(self.played, UPLOAD_S), settings.uploads, clock, settings.api_key)
        scraping = self._scrape_every_period(schedule)
        began_s = clock()
        uploads.start()
        async with _begun(self.alongside, schedule):
            cpu_s = await level.run(streams, stop=stop, drain_s=settings.drain_s)
        uploaded = await uploads.stop()
        scrapes = await self._scraped(scraping)
        report = measures.report(
            streams=streams,
            to_s=level.end_s,
            policy=settings.policy_label,
            generator_cpu_cores=cpu_s / max(level.end_s - began_s, STEP_S),
            server=figures(scrapes[0], scrapes[-1]) if len(scrapes) > 1 else ServerFigures(),
            by_minute=[figures(before, after) for before, after in itertools.pairwise(scrapes)],
            arrivals=settings.arrivals.value,
            uploads=uploaded,
        )
        return report, measures

    def _scrape_every_period(self, schedule: Schedule) -> list[asyncio.Task[Scrape]]:
        period_s = self.settings.period_s
        periods = minutes_in(schedule.end_s - schedule.from_s, period_s)
        times_s = [schedule.from_s + number * period_s for number in range(periods)]
        return [asyncio.create_task(scrape_at(self.settings.url, when_s, self.clock)) for when_s in times_s]

    async def _scraped(self, scraping: Sequence[asyncio.Task[Scrape]]) -> list[Scrape]:
        """Return the scrapes due before the level ended, which may be early, and a new one."""
        last = await scrape_at(self.settings.url, self.clock(), self.clock)
        for task in scraping:
            task.cancel()
        await asyncio.wait(scraping)
        return [*(task.result() for task in scraping if not task.cancelled()), last]


@contextlib.asynccontextmanager
async def _begun(alongside: Alongside | None, schedule: Schedule) -> AsyncIterator[None]:
    """Run `alongside` as a task until the level is over. Raises: its exception."""
    task = None if alongside is None else asyncio.ensure_future(alongside(schedule))
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def _stopping_on_interrupt() -> Iterator[asyncio.Event]:
    """Yield an event that is set by the first Ctrl-C; the second one interrupts as usual."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except (RuntimeError, ValueError, NotImplementedError):  # not in the main thread
        yield stop
        return
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
