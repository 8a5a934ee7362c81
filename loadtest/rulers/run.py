"""`tutti loadtest --ruler`: measures a running server with one ruler, level by level."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
import uvloop
from rich.console import Console

from loadtest.generator.connection import Dialer
from loadtest.program import EXIT_BAD, EXIT_OK, exit_code
from loadtest.reports import environment
from loadtest.rulers import report
from loadtest.rulers.early_end import EarlyEnd
from loadtest.rulers.playing import Played, play
from loadtest.rulers.recordings import PlayedRecordings, Spoken, endless, read
from loadtest.rulers.report import RulerDocument, RulerLevel
from loadtest.rulers.settings import Ruler, RulerSettings
from loadtest.rulers.ttfs import Ttfs
from loadtest.rulers.turns import run_turns
from loadtest.rulers.word_delay import WordDelay
from tutti_asr_client.address import listen_url

Progress = Callable[[str], None]
MOST_DISTINCT = 1_000
SPARE = 2  # recordings read for each one that is needed: some have no speech, or no alignment


RULERS: Mapping[Ruler, Callable[[Sequence[Spoken]], PlayedRecordings[Any]]] = {
    Ruler.TTFS: Ttfs,
    Ruler.WORD_DELAY: WordDelay,
    Ruler.EARLY_END: EarlyEnd,
}


def run_ruler(settings: RulerSettings, *, as_json: bool = False, as_csv: bool = False) -> int:
    """Measure and print a table, or progress on stderr and the document as JSON or CSV; returns the exit code."""
    console = Console(stderr=as_json or as_csv)
    return exit_code("loadtest", lambda: _run_and_report(settings, console, as_json=as_json, as_csv=as_csv))


def _run_and_report(settings: RulerSettings, console: Console, *, as_json: bool, as_csv: bool) -> int:
    if settings.ruler is Ruler.TURNS:
        return run_turns(settings, console, as_json=as_json)
    document = measure(settings, console.print)
    report.print_table(document, console)
    if as_json:
        typer.echo(document.encoded())
    if as_csv:
        typer.echo(report.as_csv(document), nl=False)
    return EXIT_BAD if any(report.faults(level) for level in document.levels) else EXIT_OK


def measure(settings: RulerSettings, progress: Progress) -> RulerDocument:
    """Run all levels. Raises: LoadTestError, ClientError."""
    progress(f"{settings.ruler}: preparing the recordings")
    at_most = min(MOST_DISTINCT, SPARE * max(settings.recordings, *settings.streams))
    spoken = read(settings.manifest, at_most, settings.seed)
    kind = Ttfs(spoken, explain=True) if settings.explain else RULERS[settings.ruler](spoken)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        levels = runner.run(_levels(kind, settings, progress))
    described = environment.describe(settings.seed)
    return RulerDocument(settings.ruler, tuple(levels), kind.recordings, described, kind.notes)


async def _levels(kind: PlayedRecordings[Any], settings: RulerSettings, progress: Progress) -> list[RulerLevel]:
    url = listen_url(settings.url, kind.query).replace("/v1/listen", kind.path)
    dialer = await Dialer.to(url, settings.api_key, time.perf_counter)
    levels = []
    for streams in settings.streams:
        wanted = max(settings.recordings, streams)
        progress(f"{streams} streams, {wanted} recordings")
        gc.collect()
        gc.freeze()  # a full collection during a level would add to the figures
        rng = random.Random(f"{settings.seed}/{streams}")
        played = await play(
            kind.takes(endless(kind.recordings, rng)),
            streams,
            wanted,
            dialer,
            rng,
            per_connection=settings.per_connection,
        )
        levels.append(_level(kind, streams, wanted, played))
    return levels


def _level(kind: PlayedRecordings[Any], streams: int, wanted: int, played: Played) -> RulerLevel:
    lag = played.lag.spread()
    return RulerLevel(
        streams=streams,
        recordings=len(played.takes),
        failed=wanted - len(played.takes),
        figures=kind.figures(played),
        problems=dict(played.problems),
        generator_lag_p99_ms=None if lag is None else lag.p99,
        generator_cpu_cores=round(played.cpu_cores, 2),
        generator_lag_max_ms=None if lag is None else lag.max,
    )
