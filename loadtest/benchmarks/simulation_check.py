"""Check of the simulator: calibrate, load the real server at three levels, and compare with predictions.

Predictions use the calibration and the generator's costs at lighter loads, but no measured latency. The levels are
measured in rounds, each once a round, and the medians compared, so that other programs disturb all alike.
Files are written to loadtest/results/simulation.*.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import STEP_S, LoadSettings, parse_streams
from loadtest.measurement.plot import picture
from loadtest.measurement.run import measure
from loadtest.program import EXIT_BAD, EXIT_OK, RESULTS, Seed, carry_out
from loadtest.reports import environment, pages
from loadtest.reports.environment import Environment
from loadtest.served import ALL_IN, ONE_PROCESS, served, tutti

NAME = "simulation"
HEADINGS = (
    "streams", "p50 measured", "p50 predicted", "p98 measured", "p98 predicted", "off", "batch", "predicted",
)  # fmt: skip
SHARES = (0.4, 0.5, 0.6)
"""Loads as shares of the simulated capacity: about half."""

ROUNDS = 3
WARM_UP_S = 2.0
LIGHT_STREAMS = 40
BRIEF_S = 1.5
"""Length of streams at the second light load, which shows what opening one costs the generator."""

STREAM_S = 15.0
"""Length of a stream, s: opening one takes the loop as long as twenty steps, and real calls are longer than 2 s."""
TOLERANCE = 0.25
SLO_MS = 100.0


class Figures(msgspec.Struct, frozen=True):
    """Measured or predicted figures."""

    p50: float
    p90: float
    p98: float
    batch: float | None


class Row(msgspec.Struct, frozen=True):
    """One load; `off` is the relative error of the predicted p98."""

    streams: int
    stream_s: float
    measured: Figures
    predicted: Figures
    off: float


class Check(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    rows: tuple[Row, ...]
    client_us: tuple[float, float, float, float]
    """Costs of the generator: to send a message, to read a result, tick of its clock, to open a stream."""
    calibration: dict[str, Any]
    environment: Environment

    @property
    def within(self) -> bool:
        """Whether every prediction is within the tolerance."""
        return all(abs(row.off) <= TOLERANCE for row in self.rows)


def client_costs(light: LevelReport, brief: LevelReport) -> tuple[float, float, float, float]:
    """Return the costs of the generator in µs: half of a step's in each direction, its clock's tick, opening a stream.

    The two light loads differ in the number of connections. A timer that counts ticks is half a tick late on average.
    """
    loads = np.array(
        [[level.streams / STEP_S, _opened(level) / (WARM_UP_S + level.seconds)] for level in (light, brief)]
    )
    step_us, open_us = np.linalg.solve(loads, [level.generator_cpu_cores * 1e6 for level in (light, brief)])
    tick_us = 0.0 if light.generator_lag_ms is None else 2e3 * light.generator_lag_ms.p50
    return tuple(round(max(0.0, float(each)), 1) for each in (step_us / 2, step_us / 2, tick_us, open_us))  # type: ignore[return-value]


def _opened(level: LevelReport) -> int:
    """Return the number of connections, since the beginning of the warm-up."""
    return level.complete + level.cut


def mean_stream_s(level: LevelReport) -> float:
    """Return the mean length of a stream that explains how many followed others in this level.

    As many as there are streams open at its beginning, and follow none.
    """
    followed = _opened(level) - level.streams
    return level.streams * (WARM_UP_S + level.seconds) / max(1, followed)


def compare(rounds: Sequence[LevelReport], calibration: Path, client_us: Sequence[float]) -> Row:
    """Predict a level that was measured in several rounds."""
    level = rounds[0]
    stream_s = statistics.median(map(mean_stream_s, rounds))
    options = ["--calibration", str(calibration), "--levels", str(level.streams), "--stream-s", f"{stream_s:.3f}"]
    options += ["--client-us", ",".join(map(str, client_us)), "--seconds", f"{max(10.0, level.seconds):g}", "--json"]
    found = json.loads(tutti("plan", *options))["levels"][0]
    predicted, measured = found["latency_ms"], medians(rounds)
    return Row(
        streams=level.streams,
        stream_s=round(stream_s, 2),
        measured=measured,
        predicted=Figures(predicted["p50"], predicted["p90"], predicted["p98"], found["mean_batch"]),
        off=round(predicted["p98"] / measured.p98 - 1, 3),
    )


def medians(rounds: Sequence[LevelReport]) -> Figures:
    """Return the medians of a level's rounds."""
    spreads = [level.chunk_latency_ms for level in rounds if level.chunk_latency_ms is not None]
    batches = [level.server.mean_batch for level in rounds if level.server.mean_batch is not None]
    p50, p90, p98 = (statistics.median(getattr(each, name) for each in spreads) for name in ("p50", "p90", "p98"))
    return Figures(p50, p90, p98, statistics.median(batches) if batches else None)


def markdown(check: Check) -> str:
    """Return the comparison as a page."""
    lines = ["# Simulated and measured", "", f"`{check.command}`", ""]
    lines += ["Chunk latency in ms, clients and server on the same machine, a server with its defaults.", ""]
    rows = []
    for row in check.rows:
        real, predicted = row.measured, row.predicted
        figures = (*(f"{ms:.1f}" for ms in (real.p50, predicted.p50, real.p98, predicted.p98)), f"{row.off:+.0%}")
        rows.append((str(row.streams), *figures, pages.number(real.batch), pages.number(predicted.batch)))
    lines += pages.table(HEADINGS, rows, "---")
    send, receive, tick, opening = check.client_us
    costs = f"{send:.0f} µs to send, {receive:.0f} to receive, {opening:.0f} to open a stream; clock tick {tick:.0f} µs"
    lines += ["", f"The generator: {costs}.  "]
    return "\n".join([*lines, *pages.place_lines(check.environment), "", f"![simulated and measured]({NAME}.png)", ""])


def draw(check: Check, path: Path) -> None:
    """Plot percentiles by streams, measured and predicted."""
    with picture(path, 1, 1, (6, 4.2)) as (axes,):
        streams = [row.streams for row in check.rows]
        for number, name in enumerate(("p50", "p98")):
            for side, style in (("measured", "o-"), ("predicted", "x--")):
                values = [getattr(getattr(row, side), name) for row in check.rows]
                axes.plot(streams, values, style, color=f"C{number}", label=f"{name} {side}")
        axes.set(xlabel="live streams", ylabel="chunk latency, ms", ylim=(0, None))


def check_simulation(
    streams: tuple[int, ...], calibration: Path | None, *, seconds: float, rounds: int, seed: int, console: Console
) -> tuple[tuple[Row, ...], tuple[float, float, float, float], Path]:
    """Calibrate, load, predict; returns the comparison, the generator's costs and the calibration.

    Raises: LoadTestError, ClientError.
    """
    if calibration is None:
        calibration = Path("build/calibration.json").resolve()
        console.print("calibrating, about a minute")
        tutti("calibrate", "--out", str(calibration))
    calibration = calibration.resolve()
    if not streams:
        plan = json.loads(tutti("plan", "--calibration", str(calibration), "--slo-ms", str(SLO_MS), "--json"))["plan"]
        streams = tuple(max(1, round(share * plan["capacity"] / 10) * 10) for share in SHARES)
        console.print(f"simulated capacity {plan['capacity']} streams; loads {streams}")
    with served([*ALL_IN, *ONE_PROCESS]) as url:

        def load(levels: tuple[int, ...], stream_s: float) -> tuple[LevelReport, ...]:
            settings = LoadSettings(
                url=url, streams=levels, seconds=seconds, warmup_s=WARM_UP_S, stream_s=stream_s, seed=seed
            )
            return measure(settings, progress=console.print).document.levels

        [brief] = load((LIGHT_STREAMS,), BRIEF_S)
        light, *levels = load((LIGHT_STREAMS, *(streams * rounds)), STREAM_S)
    client_us = client_costs(light, brief)
    each = [[level for level in levels if level.streams == count] for count in streams]
    return tuple(compare(level, calibration, client_us) for level in each), client_us, calibration


def main(
    *,
    streams: Annotated[
        str, typer.Option(help="Loads with commas. Default: 40, 50 and 60 % of the simulated capacity.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="Seconds measured at each load in each round.")] = 10.0,
    rounds: Annotated[int, typer.Option(help="Rounds; their medians are compared.", min=1)] = ROUNDS,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration file. Default: calibrate now.", exists=True)
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for simulation.json, .md and .png.")] = RESULTS,
    seed: Seed = 1,
) -> None:
    """Calibrate, load the real server at three levels, and compare p98 with the predictions of `tutti plan`."""
    console = Console(stderr=True)

    def work(command: str) -> int:
        levels = parse_streams(streams) if streams else ()
        rows, client_us, used = check_simulation(
            levels, calibration, seconds=seconds, rounds=rounds, seed=seed, console=console
        )
        check = Check(command, rows, client_us, json.loads(used.read_bytes()), environment.describe(seed))
        draw(check, folder / f"{NAME}.png")
        console.print(page := markdown(check), markup=False, highlight=False)
        pages.show_written(check, pages.write(check, page, folder, NAME))
        return EXIT_OK if check.within else EXIT_BAD

    carry_out("loadtest.benchmarks.simulation_check", work)


if __name__ == "__main__":
    typer.run(main)
