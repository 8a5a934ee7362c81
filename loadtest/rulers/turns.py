"""`tutti loadtest --ruler turns`: when a server ends the turns of recordings, by number of streams and by threshold."""

from __future__ import annotations

import asyncio
import bisect
import gc
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.errors import BadManifest, NoReference
from loadtest.generator.connection import Dialer
from loadtest.generator.frames import TEXT, masked
from loadtest.generator.recordings import shipped_manifest
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.program import EXIT_BAD, EXIT_OK
from loadtest.reports import environment
from loadtest.reports.environment import Environment
from loadtest.reports.pages import number
from loadtest.rulers.playing import pieces, play
from loadtest.rulers.settings import RulerSettings
from loadtest.rulers.silences import Turn, turns_of
from loadtest.rulers.turn_policies import CUTS, DELAYS_S, Curve, Firings, Floats, Span, curve
from model.errors import ModelError
from model.recordings import read_manifest
from tutti_asr_client.address import QueryValue, listen_url

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
PATH = "/v2/listen"
QUERY: dict[str, QueryValue] = {
    "model": "flux-general-en",
    "encoding": "linear16",
    "sample_rate": SAMPLE_RATE,
    "eot_timeout_ms": 60_000,  # longer than any silence here: turns end by the score alone
}
LINGER = 25  # pieces of 20 ms after the recording, for its last events
CONFIGURE = masked(TEXT, b'{"type":"Configure"}')  # its answer says that the server has received everything
JUST_BEFORE = 0.999  # of a hold: an end that arrives after it has cut it all the same
Progress = Callable[[str], None]
Taken = dict[str, "TurnTake"]
"""Takes of one threshold by recording."""


class FluxTake:
    """Pieces on a stream of `/v2/listen`, over once the server has answered everything sent."""

    language = ""

    def __init__(self, frames: tuple[bytes, ...]) -> None:
        self.frames = frames
        self.marks = frozenset([len(frames) + LINGER])
        self.over = False
        self._start_s = 0.0

    def started(self, start_s: float) -> None:
        """The connection is open."""
        self._start_s = start_s

    def after(self, piece: int, due_s: float) -> bytes:  # noqa: ARG002 - a take's
        """Return a `Configure` once everything was sent: its answer comes after all events."""
        return CONFIGURE

    def message(self, frame: bytes, now: float) -> None:
        """Pass an event on with its time after the first sample was due."""
        message = json.loads(frame)
        self.over = self.over or message["type"] == "ConfigureSuccess"
        self.event(message.get("event", ""), now - self._start_s)

    def event(self, name: str, at_s: float) -> None:
        """A turn event was received."""
        raise NotImplementedError


class TurnTake(FluxTake):
    """A recording with quiet after it; `ended_s` are the arrivals of `EndOfTurn` after its first sample was due."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(pieces(turn.pcm.tobytes()))
        self.turn = turn
        self.ended_s = list[float]()

    def event(self, name: str, at_s: float) -> None:
        """Note an end of turn."""
        if name == "EndOfTurn":
            self.ended_s.append(at_s)

    def fired(self, spans: Sequence[Span]) -> Floats:
        """Return the silence in each span at which the server ended the turn, (N,), infinite if it did not."""
        starts = [start_s for start_s, _ in self.turn.silences]
        first = dict[float, float]()
        for ended_s in self.ended_s:
            silence = bisect.bisect_right(starts, ended_s) - 1
            if silence >= 0:
                first.setdefault(starts[silence], ended_s - starts[silence])
        delays = np.array([first.get(span.at_s, math.inf) for span in spans], np.float64)
        longest = [math.inf if span.length_s is None else span.length_s * JUST_BEFORE for span in spans]
        return np.where(np.isfinite(delays), np.minimum(delays, longest), delays)


class TurnLevel(msgspec.Struct, frozen=True):
    """The figures of the server's score at one number of live streams."""

    streams: int
    score: Curve
    failed: int
    problems: dict[str, int]


class TurnDocument(msgspec.Struct, frozen=True):
    """The JSON document of the ruler."""

    ruler: str
    levels: tuple[TurnLevel, ...]
    thresholds: tuple[float, ...]
    environment: Environment


def run_turns(settings: RulerSettings, console: Console, *, as_json: bool) -> int:
    """Measure, print and return the exit code. Raises: LoadTestError, ClientError."""
    document = measure(settings, console.print)
    for level in document.levels:
        console.print(f"{level.streams} streams")
        console.print(table_of(level.score))
        for problem, times in level.problems.items():
            console.print(f"{times} × {problem}", markup=False)
    if as_json:
        typer.echo(msgspec.json.encode(document).decode())
    return EXIT_BAD if any(level.failed for level in document.levels) else EXIT_OK


def measure(settings: RulerSettings, progress: Progress, thresholds: Sequence[float] = THRESHOLDS) -> TurnDocument:
    """Run all levels. Raises: LoadTestError, ClientError."""
    progress("turns: silences of the recordings")
    turns = read_turns(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        levels = tuple(
            runner.run(_level(settings, streams, turns, thresholds, progress)) for streams in settings.streams
        )
    return TurnDocument(settings.ruler, levels, tuple(thresholds), environment.describe(settings.seed))


def read_turns(settings: RulerSettings) -> list[Turn]:
    """Return the recordings with their silences. Raises: BadManifest."""
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


async def _level(
    settings: RulerSettings, streams: int, turns: Sequence[Turn], thresholds: Sequence[float], progress: Progress
) -> TurnLevel:
    """Play all recordings at each threshold. Raises: NoReference, Unreachable."""
    taken, problems = dict[float, Taken](), Counter[str]()
    for threshold in thresholds:
        progress(f"{streams} streams, {len(turns)} recordings, eot_threshold={threshold:g}")
        url = listen_url(settings.url, QUERY | {"eot_threshold": threshold}).replace("/v1/listen", PATH)
        dialer = await Dialer.to(url, settings.api_key, time.perf_counter)
        gc.collect()
        takes = (TurnTake(turn) for turn in itertools.cycle(turns))  # as many in a row as turns play each once
        rng = random.Random(f"{settings.seed}/{streams}/{threshold}")
        played = await play(takes, streams, len(turns), dialer, rng)
        over = [take for take in played.takes if isinstance(take, TurnTake)]
        taken[threshold] = {str(take.turn.utterance.audio): take for take in over}
        problems.update(played.problems)
    spans, fired = observed(taken)
    if not spans:
        problem = next(iter(problems), "the server ended no stream")
        raise NoReference(f"{streams} streams: no recording was played at every threshold: {problem}")
    failed = len(thresholds) * len(turns) - sum(map(len, taken.values()))
    return TurnLevel(streams, curve(spans, fired), failed, dict(problems))


def observed(taken: dict[float, Taken]) -> tuple[list[Span], Firings]:
    """Return the spans of the recordings that were played at every threshold, and when each threshold ended them."""
    names = sorted(set.intersection(*(set(by_name) for by_name in taken.values())))
    spans = {name: list(next(iter(taken.values()))[name].turn.spans()) for name in names}
    fired = {
        threshold: np.concatenate([by_name[name].fired(spans[name]) for name in names] or [np.zeros(0)])
        for threshold, by_name in taken.items()
    }
    return [span for name in names for span in spans[name]], fired


def table_of(score: Curve) -> Table:
    """Return a table: a row for each set of spans."""
    table = Table("spans")
    headings = [f"cut at {1e3 * delay_s:.0f} ms" for delay_s in DELAYS_S] + [f"delay at {cut:.0%} cut" for cut in CUTS]
    for heading in ("ends", "holds", *headings):
        table.add_column(heading, justify="right")
    for name, measured in (("all", score.all), ("part B", score.part_b)):
        cuts = [number(cut, ".1%") for cut in measured.cut_at_delay.values()]
        delays = [number(delay_s, ".3f") + " s" * (delay_s is not None) for delay_s in measured.delay_s_at_cut.values()]
        table.add_row(name, str(measured.ends), str(measured.holds), *cuts, *delays)
    chosen = ["–" if best is None else f"{best.cut:.1%} ({best.delay_s:.3f} s)" for best in score.held_out.values()]
    table.add_row("part B, tuned on A", "", "", *chosen, *("" for _ in CUTS))
    return table
