"""`tutti loadtest --ruler turns`: the turns of recordings through a server, by number of streams and by threshold."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import typer
import uvloop
from rich.console import Console

from loadtest.errors import BadManifest, NoReference
from loadtest.generator.connection import Dialer
from loadtest.generator.recordings import shipped_manifest
from loadtest.program import EXIT_BAD, EXIT_OK
from loadtest.reports import environment
from loadtest.reports.environment import Environment
from loadtest.rulers.playing import play
from loadtest.rulers.settings import RulerSettings
from loadtest.rulers.turns.policies import Firings, Span, SpanSet, area_under_curve, firings_of_words
from loadtest.rulers.turns.report import Curve, curve, print_curves
from loadtest.rulers.turns.silences import Turn, turns_of
from loadtest.rulers.turns.takes import PATH, TurnTake, query, takes
from model.errors import ModelError
from model.recordings import read_manifest
from tutti_asr_client.address import listen_url
from tutti_asr_client.errors import Unreachable

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
Progress = Callable[[str], None]


class TurnLevel(msgspec.Struct, frozen=True):
    """The curves at one number of live streams: the server's score, and the number of words so far as a control."""

    streams: int
    score: Curve
    words_so_far: Curve
    words_so_far_auc: float
    failed: int
    problems: dict[str, int]


class TurnDocument(msgspec.Struct, frozen=True):
    """The JSON document of the ruler."""

    ruler: str
    levels: tuple[TurnLevel, ...]
    thresholds: tuple[float, ...]
    environment: Environment


@dataclass(slots=True)
class _Measured:
    """Takes of one level by threshold, and what went wrong."""

    taken: dict[float, dict[str, TurnTake]] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    failed: int = 0


def run_turns(settings: RulerSettings, console: Console, *, as_json: bool) -> int:
    """Measure, print and return the exit code. Raises: LoadTestError, ClientError."""
    document = measure(settings, console.print)
    for level in document.levels:
        console.print(f"{level.streams} streams; words so far: AUC {level.words_so_far_auc:.2f}")
        print_curves([level.score, level.words_so_far], console)
        for problem, times in level.problems.items():
            console.print(f"{times} × {problem}", markup=False)
    if as_json:
        typer.echo(msgspec.json.encode(document).decode())
    return EXIT_BAD if any(level.failed for level in document.levels) else EXIT_OK


def measure(settings: RulerSettings, progress: Progress, thresholds: Sequence[float] = THRESHOLDS) -> TurnDocument:
    """Run all levels. Raises: LoadTestError, ClientError."""
    progress("turns: silences of the recordings")
    turns = _turns(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        levels = tuple(
            _level(streams, runner.run(_play(settings, streams, turns, thresholds, progress)))
            for streams in settings.streams
        )
    return TurnDocument(settings.ruler, levels, tuple(thresholds), environment.describe(settings.seed))


def _turns(settings: RulerSettings) -> list[Turn]:
    """Raises: BadManifest."""
    try:
        utterances = read_manifest(settings.manifest or shipped_manifest(), texts=False)
        if len(utterances) > settings.recordings:
            utterances = random.Random(settings.seed).sample(utterances, settings.recordings)
        turns = turns_of(utterances)
    except (ModelError, OSError) as error:
        raise BadManifest(str(error)) from error
    if len({turn.part for turn in turns}) < 2:
        raise BadManifest(f"{len(turns)} recordings of one speaker: two are needed, to tune on one of them")
    return turns


async def _play(
    settings: RulerSettings, streams: int, turns: Sequence[Turn], thresholds: Sequence[float], progress: Progress
) -> _Measured:
    measured = _Measured()
    for threshold in thresholds:
        progress(f"{streams} streams, {len(turns)} recordings, eot_threshold={threshold:g}")
        dialer = await _dialer(settings, threshold)
        gc.collect()
        rng = random.Random(f"{settings.seed}/{streams}/{threshold}")
        played = await play(takes(turns), streams, len(turns), dialer, rng)
        over = [take for take in played.takes if isinstance(take, TurnTake)]
        measured.taken[threshold] = {str(take.turn.utterance.audio): take for take in over}
        measured.failed += len(turns) - len(over)
        for problem, times in played.problems.items():
            measured.problems[problem] = measured.problems.get(problem, 0) + times
    return measured


async def _dialer(settings: RulerSettings, threshold: float) -> Dialer:
    headers = {} if settings.api_key is None else {"Authorization": f"Token {settings.api_key}"}
    url = listen_url(settings.url, query(threshold)).replace("/v1/listen", PATH)
    try:
        return await Dialer.to(url, headers, time.perf_counter)
    except OSError as error:
        raise Unreachable(settings.url, str(error)) from error


def _level(streams: int, measured: _Measured) -> TurnLevel:
    """Raises: NoReference."""
    spans, fired = observed(measured.taken)
    if not spans:
        problem = next(iter(measured.problems), "the server ended no stream")
        raise NoReference(f"{streams} streams: no recording was played at every threshold: {problem}")
    words = firings_of_words(spans)
    return TurnLevel(
        streams=streams,
        score=curve("score", SpanSet(spans), fired),
        words_so_far=curve("words so far", SpanSet(spans), words),
        words_so_far_auc=round(area_under_curve(spans, [span.words for span in spans]), 3),
        failed=measured.failed,
        problems=measured.problems,
    )


def observed(taken: dict[float, dict[str, TurnTake]]) -> tuple[list[Span], Firings]:
    """Return the spans of the recordings that were played at every threshold, and when each threshold ended them.

    The words so far are those of the greatest threshold, which cuts turns the least.
    """
    names = sorted(set.intersection(*(set(by_name) for by_name in taken.values())))
    last = taken[max(taken)]
    spans = {name: last[name].spans() for name in names}
    fired = {
        threshold: np.concatenate([by_name[name].fired(spans[name]) for name in names] or [np.zeros(0)])
        for threshold, by_name in taken.items()
    }
    return [span for name in names for span in spans[name]], fired
