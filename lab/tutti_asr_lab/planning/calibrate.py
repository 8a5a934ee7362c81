"""`tutti calibrate`: measures batch times on this machine and the server's overhead around the model.

Measures first the engine alone in this process, then a new server under rising loads. The result is one file for
`tutti plan`.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from loadtest.generator.composition import compose, read_recordings
from loadtest.generator.recordings import shipped_manifest
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.measurement.engine_times import EngineTimes, measure_engine
from loadtest.reports import environment
from loadtest.served import ALL_IN, ONE_PROCESS, served_process
from model.acoustic import load_model
from model.decoder import DecoderName, decoder_of, resolve_decoder, second_passes_of
from model.facts import AcousticModel
from model.machine.runtime import shorten_switches
from model.published.files import Rewriting
from tutti_asr_lab.planning import loopback
from tutti_asr_lab.planning.second_passes import measure_passes
from tutti_asr_lab.simulation.calibration import Calibration, Interference, Overheads, Provenance, Spread, Spreads
from tutti_asr_lab.simulation.service_table import ServiceTable

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
LEVELS = (20, 80, 160, 320)
FULL = 0.6
"""Share of the event loop's time above which no higher level is measured, since it would be an overload."""
WINDOW_S = 3.0
SPEECH_S = 60.0  # length of the audio, which is repeated
SHORT_STREAMS = 60  # consecutive streams, to measure the cost of opening one
QUIET = 0.05
"""Cores that other programs may take during a measurement; with more it is repeated, up to `TRIES` times in all."""

TRIES = 4
WAKES = 3  # of a step on its way through an idle server: event loop, model thread, event loop

Progress = Callable[[str], None]


def calibrate(
    *,
    model_path: Path | None,
    device: str,
    precision: str,
    threads: int,
    decoder: DecoderName,
    progress: Progress,
    rewriting: Rewriting = "auto",
) -> Calibration:
    """Measure batch times, costs and interference; takes about a minute on an idle machine.

    Raises: ModelError; ServerNotReady or OSError if the server fails.
    """
    shorten_switches()
    model = load_model(model_path, device=device, precision=precision, threads=threads, rewriting=rewriting)
    progress(f"engine: batches of {SIZES[0]} to {SIZES[-1]} rows, {model.facts.precision}")
    times = measure_engine(model.slots, SIZES, tries=TRIES)
    options = [*ALL_IN, *ONE_PROCESS, "--log-level", "error", "--decoder", decoder, "--threads", str(threads)]
    options += ["--device", device, "--precision", precision]
    options += ["--model", str(model_path)] if model_path else []
    audio = speech(model.config.languages, round(model.config.step_samples * SAMPLE_RATE / model.config.sample_rate))
    windows, silent, short = _measure_server(options, audio, progress)
    progress("second passes, alone")
    search = decoder_of(model.facts, decoder=decoder)
    passes = measure_passes(model, search, second_passes_of(model.facts, search, checkpoint=model_path), audio)
    table = ServiceTable.of(times.step_s, QUANTILES)
    step_s = model.config.step_samples / model.config.sample_rate
    overheads = fit_overheads(times, windows, silent, short, table=table)
    interference = fit_interference(windows, table)
    spreads = fit_spreads(windows)
    # without `--out`, which would contain a local path
    command = shlex.join(["tutti", "calibrate", "--decoder", decoder, "--precision", precision, "--device", device])
    others = round(max(window.others_s for window in windows.values()) / WINDOW_S, 3)  # cores, at most in one window
    provenance = _provenance(model, searched(model, decoder), command, others=others)
    flush_steps = round(short.rows / SHORT_STREAMS) - 1
    return Calibration(provenance, step_s, table, overheads, interference, spreads, flush_steps, passes)


def _measure_server(
    options: Sequence[str], audio: Sequence[bytes], progress: Progress
) -> tuple[dict[int, loopback.Window], loopback.Window, loopback.Window]:
    """Return the measurements of a new server: under rising loads, at the highest without results, of short streams."""
    with served_process(options) as (url, pid):
        port = int(url.rpartition(":")[2])

        def load(streams: int, *, answers: bool = True) -> loopback.Window:
            progress(f"server: {streams} streams for {WINDOW_S:g} s, {'with' if answers else 'without'} results")
            return least_disturbed(
                lambda: loopback.load(port, pid, audio, streams=streams, seconds=WINDOW_S, answers=answers)
            )

        windows = measure_rising_loads(load)
        silent = load(max(windows), answers=False)
        progress(f"server: {SHORT_STREAMS} short streams")
        return windows, silent, loopback.short_streams(port, pid, audio[0], SHORT_STREAMS)


def searched(model: AcousticModel, decoder: DecoderName) -> str:
    """Return greedy or beam: what the server does with this setting."""
    if decoder == "auto" and model.facts.published:
        return "greedy"  # no language model is given
    return resolve_decoder(decoder, None)


def speech(languages: Sequence[str], step_samples: int) -> list[bytes]:
    """Return steps of shipped speech in one of the languages, else in English: decoding noise takes another time."""
    recordings = read_recordings(shipped_manifest().with_name("both.jsonl"))
    spoken = next((recordings[language] for language in languages if language in recordings), recordings[""])
    pcm = compose(spoken, SPEECH_S, Random(1))
    return [pcm[at : at + step_samples].tobytes() for at in range(0, len(pcm) - step_samples + 1, step_samples)]


def least_disturbed(measure: Callable[[], loopback.Window]) -> loopback.Window:
    """Repeat a measurement while other programs compute; return the one in which they did least."""
    found = [measure()]
    while found[-1].others_s > QUIET * WINDOW_S and len(found) < TRIES:
        found.append(measure())
    return min(found, key=lambda window: window.others_s)


def measure_rising_loads(load: Callable[[int], loopback.Window]) -> dict[int, loopback.Window]:
    """Return the measurements at each number of streams, up to the first above `FULL`."""
    windows: dict[int, loopback.Window] = {}
    for streams in LEVELS:
        windows[streams] = load(streams)
        if windows[streams].loop_s > FULL * WINDOW_S:
            break
    return windows


def fit_overheads(
    times: EngineTimes,
    windows: dict[int, loopback.Window],
    silent: loopback.Window,
    short: loopback.Window,
    *,
    table: ServiceTable,
) -> Overheads:
    """Fit the costs of event loop and decoding per batch, per row and per second, by least squares over the loads.

    A row without a result saves the time of writing. Decoding is measured by the clock, the loop by its processor time,
    so on a busy machine decoding is limited to the rest of the loop's. A wake-up is the time from a batch's end to its
    decoding at the lightest load, when the loop sleeps; `path_s` is the remainder of the shortest median round trip.
    """
    done = np.array([(window.batches, window.rows, WINDOW_S) for window in windows.values()])
    batch_s, row_s, idle_s = _non_negative_fit(done, [window.loop_s for window in windows.values()])
    _, decode_s, _ = _non_negative_fit(done, [window.decode_s for window in windows.values()])
    without_s = max(0.0, (silent.loop_s - batch_s * silent.batches - idle_s * WINDOW_S) / silent.rows)
    write_s = max(0.0, row_s - without_s)
    decode_s = min(decode_s, row_s - write_s)
    outside = [cycle_s - statistics.median(times.step_s[rows]) for rows, cycle_s in times.cycle_s.items()]
    engine_row_s, engine_s = (max(0.0, float(cost_s)) for cost_s in np.polyfit(list(times.cycle_s), outside, 1))
    other_s = [
        window.all_s - window.loop_s - window.batches * (table.median(window.rows / window.batches) + engine_s)
        for window in windows.values()
    ]
    lightest = windows[min(windows)]
    wake_s = statistics.median(_handovers_s(lightest))
    light_s = min(statistics.median(window.round_trips_s) for window in windows.values())
    known_s = row_s + batch_s + engine_s + table.median(1) + WAKES * wake_s
    return Overheads(
        open_s=max(0.0, (short.loop_s - batch_s * short.batches - row_s * short.rows) / SHORT_STREAMS),
        receive_s=max(0.0, row_s - write_s - decode_s),
        batch_s=batch_s,
        decode_s=decode_s,
        write_s=write_s,
        engine_s=engine_s,
        engine_row_s=engine_row_s,
        path_s=max(0.0, light_s - known_s),
        wake_s=wake_s,
        other_s=max(0.0, sum(other_s) / sum(window.rows for window in windows.values()) - engine_row_s),
    )


def fit_spreads(windows: dict[int, loopback.Window]) -> Spreads:
    """Measure how single wake-ups and batches differ from what is typical.

    Wake-ups are those of the lightest load, decoding times those of the heaviest: compared with a line over their rows.
    """
    lightest, heaviest = windows[min(windows)], windows[max(windows)]
    rows = np.array([batch.rows for batch in heaviest.steps], dtype=float)
    took_s = np.array([batch.decode_s for batch in heaviest.steps])
    line = _non_negative_fit(np.stack([rows, np.ones(len(rows))], axis=1), took_s.tolist())
    factors = took_s / np.maximum(rows * line[0] + line[1], 1e-9)
    wakes_s = _handovers_s(lightest)
    return Spreads(
        wake=Spread.of(wakes_s, statistics.median(wakes_s), QUANTILES),
        loop=Spread.of(factors, statistics.fmean(factors), QUANTILES),
    )


def _handovers_s(window: loopback.Window) -> list[float]:
    return [batch.handover_s for batch in window.steps]


def fit_interference(windows: dict[int, loopback.Window], table: ServiceTable) -> Interference:
    """Fit the time of batches beyond the engine's median: median by the loop's load, spread at the highest.

    The lightest load is omitted, because idle times between steps slow a machine down in other ways.
    """
    busy, longer = [], []
    for window in list(windows.values())[1:] or windows.values():
        medians = {rows: table.median(rows) for rows in {batch.rows for batch in window.steps}}
        busy.append(window.loop_s / WINDOW_S)
        longer.append([batch.step_s - medians[batch.rows] for batch in window.steps])
    medians_s = [statistics.median(found) for found in longer]
    busy_s, idle_s = _non_negative_fit(np.stack([busy, np.ones(len(busy))], axis=1), medians_s)
    if medians_s[-1] <= 0:
        return Interference()
    return Interference(idle_s, busy_s, Spread.of(longer[-1], medians_s[-1], QUANTILES))


def _non_negative_fit(done: NDArray[np.float64], seconds: Sequence[float]) -> list[float]:
    """Fit seconds per unit of each column by least squares; negative ones are set to zero, the lowest first."""
    used = list(range(done.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(done[:, used], np.asarray(seconds), rcond=None)
        if len(used) == 1 or found.min() >= 0:
            return [float(found[used.index(column)]) if column in used else 0.0 for column in range(done.shape[1])]
        del used[int(found.argmin())]


def _provenance(model: AcousticModel, decoder: str, command: str, *, others: float) -> Provenance:
    here = environment.describe(seed=0)
    return Provenance(
        hardware=here.hardware,
        cores=here.cores,
        model=model.config.name,
        digest=model.facts.digest,
        precision=model.facts.precision,
        device=str(model.facts.device),
        threads=model.threads,
        decoder=decoder,
        lm="built-in" if decoder == "beam" else "off",
        others=others,
        date=here.date,
        versions=here.versions,
        command=command,
    )
