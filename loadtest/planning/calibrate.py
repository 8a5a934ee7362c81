"""`tutti calibrate`: this machine's batch times and what the server around the model costs, measured.

First the engine alone in this process, then a server of its own under rising loads. Everything that a capacity plan
needs, in one file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from batching.simulation.calibration import Calibration, Interference, Overheads, Provenance
from batching.simulation.service_table import ServiceTable
from loadtest.planning import loopback
from loadtest.planning.engine_times import EngineTimes, measure_engine
from model.acoustic import AcousticModel
from model.runtime import set_threads, shorten_switches

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
READY_WITHIN_S = 60.0
LEVELS = (20, 80, 160, 320)
FULL = 0.6
"""Share of the event loop's time beyond which there is no higher level: what follows would be an overload."""
WINDOW_S = 3.0
VISITS = 60

Tell = Callable[[str], None]


def calibrate(
    *, model_path: Path | None, device: str, precision: str, threads: int, decoder: str, tell: Tell
) -> Calibration:
    """Measure everything; under a minute. Raises: ModelError; OSError or RuntimeError if the server does not run."""
    set_threads(threads)
    shorten_switches()
    model = AcousticModel.load(model_path, device=device, precision=precision)
    tell(f"engine: batches of {SIZES[0]} to {SIZES[-1]} rows, {model.precision}")
    times = measure_engine(model, SIZES)
    options = [
        "--max-streams",
        "1024",
        "--decoder",
        decoder,
        "--threads",
        str(threads),
        "--device",
        device,
        "--precision",
        precision,
    ]
    options += ["--model", str(model_path)] if model_path else []
    noise = np.random.default_rng(1).integers(-300, 300, (64, model.config.step_samples), dtype=np.int16)
    audio = [step.tobytes() for step in noise]
    with _served(options) as (port, pid):

        def load(streams: int) -> loopback.Window:
            tell(f"server: {streams} streams for {WINDOW_S:g} s")
            return loopback.load(port, pid, audio, streams=streams, seconds=WINDOW_S, answers=True)

        windows = rising(load)
        most = max(windows)
        tell(f"server: {most} streams without answers, then {VISITS} short ones")
        silent = loopback.load(port, pid, audio, streams=most, seconds=WINDOW_S, answers=False)
        visits = loopback.visit(port, pid, audio[0], VISITS)
    table = ServiceTable.of({rows: times.step_s[rows] for rows in SIZES}, QUANTILES)
    step_s = model.config.step_samples / model.config.sample_rate
    overheads = conclude(times, windows, silent, visits, table=table)
    interference = interfering(windows, table)
    # Without the file that it goes to, and so without a path of this machine.
    command = shlex.join(["tutti", "calibrate", "--decoder", decoder, "--precision", precision, "--device", device])
    provenance = _provenance(model, threads, command)
    return Calibration(provenance, step_s, table, overheads, interference, round(visits.rows / VISITS) - 1)


def rising(load: Callable[[int], loopback.Window]) -> dict[int, loopback.Window]:
    """Return what was seen at each number of streams, up to the first that fills the event loop."""
    windows: dict[int, loopback.Window] = {}
    for streams in LEVELS:
        windows[streams] = load(streams)
        if windows[streams].loop_s > FULL * WINDOW_S:
            break
    return windows


def conclude(
    times: EngineTimes,
    windows: dict[int, loopback.Window],
    silent: loopback.Window,
    visits: loopback.Window,
    *,
    table: ServiceTable,
) -> Overheads:
    """Least squares over the loads: the loop's time is so much a batch, a row and a second, as is the decoding in it.

    Without answers a row costs as much less as writing takes. The way is what the quickest median has left.
    """
    done = np.array([(window.batches, window.rows, WINDOW_S) for window in windows.values()])
    batch_s, row_s, idle_s = _shares(done, [window.loop_s for window in windows.values()])
    _, decode_s, _ = _shares(done, [window.decode_s for window in windows.values()])
    without_s = max(0.0, (silent.loop_s - batch_s * silent.batches - idle_s * WINDOW_S) / silent.rows)
    write_s = min(max(0.0, row_s - without_s), row_s - decode_s)
    engine_s, engine_row_s = times.outside_s()
    light_s = min(statistics.median(window.round_trips_s) for window in windows.values())
    known_s = row_s + batch_s + engine_s + table.median(1)
    return Overheads(
        open_s=max(0.0, (visits.loop_s - batch_s * visits.batches - row_s * visits.rows) / VISITS),
        receive_s=max(0.0, row_s - write_s - decode_s),
        batch_s=batch_s,
        decode_s=decode_s,
        write_s=write_s,
        engine_s=engine_s,
        engine_row_s=engine_row_s,
        path_s=max(0.0, light_s - known_s),
    )


def interfering(windows: dict[int, loopback.Window], table: ServiceTable) -> Interference:
    """What batches take beyond the engine's median: its mean by the loop's load, and its spread at the highest.

    The lightest load is left out: a machine that sleeps between two steps is slow in another way.
    """
    busy, longer = [], []
    for window in list(windows.values())[1:] or windows.values():
        medians = {rows: table.median(rows) for rows, _ in window.steps}
        busy.append(window.loop_s / WINDOW_S)
        longer.append([took_s - medians[rows] for rows, took_s in window.steps])
    means = [statistics.fmean(found) for found in longer]
    busy_s, idle_s = _shares(np.stack([busy, np.ones(len(busy))], axis=1), means)
    if means[-1] <= 0:
        return Interference()
    shape = np.quantile(np.asarray(longer[-1]) / means[-1], QUANTILES)
    return Interference(idle_s, busy_s, QUANTILES, tuple(float(factor) for factor in shape))


def _shares(done: NDArray[np.float64], seconds: Sequence[float]) -> list[float]:
    """Seconds for one of each column, none below zero: whatever would be is left out, the most negative first."""
    used = list(range(done.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(done[:, used], np.asarray(seconds), rcond=None)
        if len(used) == 1 or found.min() >= 0:
            return [float(found[used.index(column)]) if column in used else 0.0 for column in range(done.shape[1])]
        del used[int(found.argmin())]


@contextlib.contextmanager
def _served(options: list[str]) -> Iterator[tuple[int, int]]:
    """Port and process id of a server that is ready; it is stopped on leaving."""
    with socket.create_server((loopback.HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
    command = [sys.executable, "-m", "server.cli", "serve", "--host", loopback.HOST, "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "error", *options], cwd=Path(__file__).parents[2])  # noqa: S603
    try:
        until_s = time.monotonic() + READY_WITHIN_S
        while not loopback.server_answers(port):
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("the server to be measured did not start")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _provenance(model: AcousticModel, threads: int, command: str) -> Provenance:
    return Provenance(
        hardware=_processor(),
        cores=len(os.sched_getaffinity(0)),
        model=model.config.name,
        digest=model.digest,
        precision=model.precision,
        device=str(model.device),
        threads=threads or torch.get_num_threads(),
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in ("tutti-asr", "torch", "numpy", "uvicorn", "uvloop")},
        command=command,
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
