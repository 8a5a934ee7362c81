"""Layers of the score of an end of turn: fitted to one half of the speakers, compared on the other, without a server.

    python -m loadtest.rulers.turns.layers --manifest dev.jsonl --turn-model smart-turn-v3.2-cpu.onnx

As in eot-bench, time is the time of the audio, without any computation: an answer counts from 0.2 s of silence on. The
turn model is asked at 0.1 s of silero's silence, which is 0.2 s by the level of the audio, as the server asks. The
printed odds are the constants of `model.turn_ends.score`: those of part A. What a layer gains is measured on each half
of the speakers with odds and policies of the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from loadtest.program import EXIT_OK, carry_out
from loadtest.rulers.turns.policies import Firings, Span, SpanSet
from loadtest.rulers.turns.report import Curve, Fold, Gain, compared, curve, draw_curves, print_curves
from loadtest.rulers.turns.silences import RATE, Turn, turns_of
from model.errors import ModelError
from model.recordings import read_manifests
from model.turn_ends.score import EVEN, Odds, log_odds
from model.turn_ends.turn_model import TurnModel

ASKED_S = 0.1  # of silence, after which the turn model is asked
FROM_S = 0.2  # of silence, from which its answer counts
STEP_S = 0.05  # of silence, between two rows of the fit
UNTIL_S = 1.0  # of silence, up to which the odds are fitted
THRESHOLDS = tuple(step / 100 for step in range(20, 99))
RIGHT_AT = (0.5, 0.6, 0.7, 0.8, 0.9)


class Right(msgspec.Struct, frozen=True):
    """Of the silences that reach a threshold, the share that are ends: the threshold itself if it is calibrated."""

    threshold: float
    tuned: float
    held_out: float


class Layer(msgspec.Struct, frozen=True):
    """One layer with the layers before it."""

    name: str
    base: float
    per_s: float
    per_answer: float
    right: tuple[Right, ...]
    curve: Curve


@dataclass(frozen=True, slots=True)
class Observed:
    """Spans, and the answer of the turn model about each: `EVEN` without one."""

    spans: tuple[Span, ...]
    answers: tuple[float, ...]


def observe(turns: Sequence[Turn], model: TurnModel | None) -> Observed:
    """Return the holds and ends of the turns, and ask the model about each.

    The words so far are estimated: the share of the text that is the share of time.
    """
    spans, answers = list[Span](), list[float]()
    for turn in turns:
        text, last_s = turn.utterance.text.split(), turn.silences[-1][0]
        for found in turn.spans(lambda _: 0):
            span = replace(found, words=round(len(text) * found.at_s / last_s))
            spans.append(span)
            until = round((span.at_s + ASKED_S) * RATE)
            answers.append(EVEN if model is None else model.probability(turn.pcm[:until]))
    return Observed(tuple(spans), tuple(answers))


def fitted(observed: Observed, part: str, *, with_answer: bool) -> Odds:
    """Fit the odds to one part by logistic regression, one row for each span and `STEP_S` of silence that it lasts."""
    rows, ends = list[tuple[float, float, float]](), list[float]()
    for span, answer in zip(observed.spans, observed.answers, strict=True):
        for silence_s in np.arange(FROM_S, UNTIL_S + STEP_S / 2, STEP_S):
            if span.part == part and (span.length_s is None or silence_s < span.length_s):
                rows.append((1.0, float(silence_s), log_odds(answer) if with_answer else 0.0))
                ends.append(float(span.length_s is None))
    found = _regression(np.array(rows)[:, : 3 if with_answer else 2], np.array(ends))
    return Odds(*(round(float(each), 3) for each in found))


def _regression(rows: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights, (F,), of a logistic regression of `ends`, (N,), on `rows`, (N, F), by Newton's method."""
    weights = np.zeros(rows.shape[1])
    for _ in range(30):
        expected = 1.0 / (1.0 + np.exp(-rows @ weights))
        curvature = (rows * (expected * (1.0 - expected))[:, None]).T @ rows
        weights = weights + np.linalg.solve(curvature, rows.T @ (ends - expected))
    return weights


def firings(observed: Observed, odds: Odds) -> Firings:
    """Return when each threshold is reached in each span; not before the model can be asked."""
    return {
        threshold: np.array([max(FROM_S, odds.delay_s(threshold, answer)) for answer in observed.answers])
        for threshold in THRESHOLDS
    }


def right(spans: Sequence[Span], fired: Mapping[float, NDArray[np.float64]], threshold: float, part: str) -> float:
    """Return the share of ends among the spans that last until the threshold is reached."""
    reached = [
        span.length_s is None
        for span, after_s in zip(spans, fired[threshold], strict=True)
        if span.part == part and (span.length_s is None or after_s < span.length_s)
    ]
    return round(sum(reached) / max(len(reached), 1), 3)


def layer_of(name: str, observed: Observed, *, with_answer: bool) -> Layer:
    """Fit one layer and measure it."""
    odds = fitted(observed, "A", with_answer=with_answer)
    fired = firings(observed, odds)
    calibrated = tuple(
        Right(each, right(observed.spans, fired, each, "A"), right(observed.spans, fired, each, "B"))
        for each in RIGHT_AT
    )
    measured = curve(name, SpanSet(observed.spans), fired)
    return Layer(name, odds.base, odds.per_s, odds.per_answer, calibrated, measured)


def gains(observed: Observed) -> dict[int, Gain]:
    """Return what the turn model gains over silence alone, on speakers that nothing was fitted to."""
    spans = SpanSet(observed.spans)
    folds = []
    for tuned, held in (("A", "B"), ("B", "A")):
        before, after = (
            firings(observed, fitted(observed, tuned, with_answer=with_answer)) for with_answer in (False, True)
        )
        folds.append(Fold(spans.part(tuned), spans.part(held), before, after))
    return compared(folds)


def measure(
    manifests: Sequence[Path], turn_model: Path | None, without: Sequence[str], progress: Callable[[str], None]
) -> tuple[list[Layer], dict[int, Gain]]:
    """Return the layers, and what the turn model gains over silence alone. Raises: ModelError."""
    turns = turns_of([each for each in read_manifests(manifests) if each.source not in without])
    model = None if turn_model is None else TurnModel.load(turn_model)
    progress(f"{len(turns)} recordings")
    observed = observe(turns, model)
    silence = layer_of("silence", observed, with_answer=False)
    if model is None:
        return [silence], {}
    return [silence, layer_of("silence and turn model", observed, with_answer=True)], gains(observed)


def main(
    manifest: Annotated[list[Path], typer.Option(help="Recordings as JSON lines with `audio` and `text`; repeatable.")],
    turn_model: Annotated[Path | None, typer.Option(help="Graph of Smart Turn's form. Default: silence alone.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the curves to this PNG file.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Source of the manifests to leave out; repeatable.")] = None,
) -> NoReturn:
    """Fit the score to part A, compare its layers on part B; the last line is one JSON document."""

    def work(command: str) -> int:
        console = Console(stderr=True)
        layers, found = measure(manifest, turn_model, without or [], console.print)
        curves = [layer.curve for layer in layers]
        print_curves(curves, console)
        if plot is not None:
            draw_curves(curves, plot)
        typer.echo(msgspec.json.encode({"command": command, "layers": layers, "gains": found}).decode())
        return EXIT_OK

    carry_out(__spec__.name, work, ModelError)


if __name__ == "__main__":
    typer.run(main)
