"""Delay of `SpeechStarted` on recordings, in audio time, false starts on noise, and the detector's processor time.

    python -m loadtest.benchmarks.speech_starts --manifest dev.jsonl --noise noise.jsonl

Each recording comes after a second of its own quietest 0.2 s. Several onsets are taken as the truth: the beginning of
silero's first window of speech, and that of the first 60 ms whose levels are 15, 20 or 25 dB below the recording's
loudest tenth at most. Lower levels are often breath, or hiss before the voice. For these, a recording that is not
`QUIET_DB` quieter before its onset is left out. The delay is from the onset to the end of the step with which the
message comes: the latency of the server, which this program starts, is not in it. A start up to `EARLY_S` before an
onset is its start, an earlier one is a false start. `--gain-db -20` gives the delays of quiet voices: the server gets
the recordings at this gain, after the onsets are found.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from loadtest.program import carry_out
from loadtest.reports.environment import describe
from loadtest.served import served_process
from model.acoustic import load_model
from model.recordings import read_manifest, read_pcm
from model.vad.silero import SileroVad
from tutti_asr_client.files.transcriber import RemoteTranscriber
from tutti_asr_client.messages import Results, SpeechStarted

RATE, WINDOW = SileroVad.sample_rate, SileroVad.step_samples
LEVEL = RATE // 50  # samples of a level
LOUD_DB, QUIET_DB = (15.0, 20.0, 25.0), 15.0
LEAD_S = 1.0
EARLY_S = 0.3
SPEECH_ABOVE = 0.5
TOGETHER = 16  # recordings at a time
BATCHES = (1, 16, 64)
ROUNDS = 15

Audio = NDArray[np.int16]


def with_quiet(pcm: Audio) -> Audio:
    """Return a recording (S,) after `LEAD_S` of its quietest 0.2 s, forward and backward in turn."""
    size = RATE // 5
    starts = range(0, max(1, len(pcm) - size), size // 4)
    energies = [float(np.mean(pcm[start : start + size].astype(np.float64) ** 2)) for start in starts]
    quiet = pcm[starts[int(np.argmin(energies))] :][:size]
    lead = np.concatenate([quiet[:: 1 - 2 * (turn % 2)] for turn in range(round(LEAD_S * RATE / size))])
    return np.concatenate([lead, pcm])


def amplified(pcm: Audio, gain_db: float) -> Audio:
    """Return a recording (S,) at this gain, rounded and clipped."""
    scaled: Audio = np.clip(np.rint(pcm * 10 ** (gain_db / 20)), -32_768, 32_767).astype(np.int16)
    return scaled


def level_onset(pcm: Audio, below_db: float) -> float | None:
    """Return the start of speech in seconds by levels at most `below_db` below the loud ones.

    None if the recording is not quiet before it.
    """
    blocks = pcm[: len(pcm) // LEVEL * LEVEL].reshape(-1, LEVEL).astype(np.float64)
    levels = 10 * np.log10(np.mean(blocks**2, axis=1) + 1.0)
    loud = np.percentile(levels, 90) - below_db
    above = levels > loud
    starts = np.flatnonzero(above[:-2] & above[1:-1] & above[2:])
    if not len(starts) or starts[0] == 0:
        return None
    quieter = bool(np.all(levels[: starts[0]] < loud))
    rises = np.max(levels[starts[0] : starts[0] + 10]) - np.median(levels[: starts[0]]) >= QUIET_DB
    return float(starts[0] * LEVEL / RATE) if quieter and rises else None


def silero_onset(vad: SileroVad, pcm: Audio) -> float | None:
    """Return the beginning of the first window of speech in seconds."""
    slots = vad.slots(capacity=1, largest=1)
    slots.reset(0)
    for number in range(len(pcm) // WINDOW):
        slots.inputs[0] = pcm[number * WINDOW : (number + 1) * WINDOW]
        if slots.run([0])[0, 0] > SPEECH_ABOVE:
            return number * WINDOW / RATE
    return None


async def _pieces(pcm: Audio) -> AsyncIterator[bytes]:
    for start in range(0, len(pcm), RATE // 10):
        yield pcm[start : start + RATE // 10].tobytes()


async def starts_of(transcriber: RemoteTranscriber, pcm: Audio) -> list[float]:
    """Return the audio time at which each `SpeechStarted` comes: the end of its step."""
    found: list[float] = []
    waiting = 0
    async for message in transcriber.stream(_pieces(pcm)):
        if isinstance(message, SpeechStarted):
            waiting += 1
        elif isinstance(message, Results) and waiting:
            found += [message.start + message.duration] * waiting
            waiting = 0
    return found


async def _all_starts(url: str, recordings: Sequence[Audio]) -> list[list[float]]:
    gate, transcriber = asyncio.Semaphore(TOGETHER), RemoteTranscriber(url, vad_events=True)

    async def one(pcm: Audio) -> list[float]:
        async with gate:
            return await starts_of(transcriber, pcm)

    return list(await asyncio.gather(*map(one, recordings)))


def all_starts(vad: str, recordings: Sequence[Audio]) -> list[list[float]]:
    """Recognize recordings on a server with this `--vad`."""
    options = ("--vad", vad, "--precision", "int8", "--max-streams", str(2 * TOGETHER), "--front-ends", "0")
    with served_process(options) as (url, _):
        return asyncio.run(_all_starts(url, recordings))


def delays(starts: Sequence[Sequence[float]], onsets: Sequence[float | None]) -> dict[str, object]:
    """Return figures of the start that belongs to each onset, the first one at most `EARLY_S` before it."""
    found: list[float] = []
    early = missed = 0
    for times, onset in zip(starts, onsets, strict=True):
        if onset is None:
            continue
        early += any(at <= onset - EARLY_S for at in times)
        after = [at - onset for at in times if at > onset - EARLY_S]
        if after:
            found.append(after[0])
        else:
            missed += 1
    p50, p95 = np.percentile(found, [50, 95]) * 1e3
    return {
        "recordings": len(found) + missed,
        "median_ms": round(float(p50)),
        "p95_ms": round(float(p95)),
        "missed": missed,
        "false_before_the_onset": early,
    }


def processor_ms() -> dict[str, dict[str, float]]:
    """Return processor ms of a stream's second by rows of a batch: detector and 8-bit network, in turn, medians."""
    vad, model = SileroVad.load(), load_model(None, device="cpu", precision="int8")
    noise = np.random.default_rng(1)
    figures: dict[str, dict[str, float]] = {}
    for rows in BATCHES:
        pairs = [
            (made, made.inputs.shape[1] / RATE) for made in (m.slots(capacity=rows, largest=rows) for m in (vad, model))
        ]
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for (slots, step_s), taken in zip(pairs, times, strict=True):
                slots.inputs[:rows] = noise.integers(-3_000, 3_000, slots.inputs[:rows].shape)
                began = time.process_time()
                slots.run(range(rows))
                taken.append((time.process_time() - began) / rows / step_s * 1e3)
        silero, network = (float(np.median(taken)) for taken in times)
        figures[str(rows)] = {"silero": round(silero, 3), "network": round(network, 3)}
    return figures


def measure(command: str, manifest: Path, noise: Path | None, most: int, gain_db: float) -> int:
    """Print the figures, the last line as JSON."""
    recordings = [with_quiet(read_pcm(each.audio, RATE)) for each in read_manifest(manifest)[:most]]
    vad = SileroVad.load()
    onsets = {"silero": [silero_onset(vad, pcm) for pcm in recordings]}
    onsets |= {f"level_{db:g}_db": [level_onset(pcm, db) for pcm in recordings] for db in LOUD_DB}
    recordings = [amplified(pcm, gain_db) for pcm in recordings]
    sounds = [] if noise is None else [read_pcm(each.audio, RATE) for each in read_manifest(noise, texts=False)]
    result: dict[str, Any] = {"command": command, "vad": {}}
    for setting in ("off", "auto"):
        starts = all_starts(setting, recordings)
        figures: dict[str, Any] = {name: delays(starts, truth) for name, truth in onsets.items()}
        if sounds:
            count = sum(len(times) for times in all_starts(setting, sounds))
            hours = sum(map(len, sounds)) / RATE / 3_600
            figures["noise"] = {"starts": count, "hours": round(hours, 2), "starts_an_hour": round(count / hours, 1)}
        result["vad"][setting] = figures
        typer.echo(f"{setting}: {json.dumps(figures)}")
    result["processor_ms_a_stream_second"] = processor_ms()
    result["environment"] = msgspec.to_builtins(describe(1))
    typer.echo(json.dumps(result))
    return 0


def main(
    manifest: Annotated[Path, typer.Option(help="Recordings as JSON lines.")],
    noise: Annotated[Path | None, typer.Option(help="Recordings without speech, as JSON lines.")] = None,
    most: Annotated[int, typer.Option(help="Number of recordings at most.")] = 300,
    gain_db: Annotated[float, typer.Option(help="Gain of the recordings that are sent; negative: quiet voices.")] = 0.0,
) -> None:
    """Measure starts of speech."""
    carry_out("loadtest.benchmarks.speech_starts", lambda command: measure(command, manifest, noise, most, gain_db))


if __name__ == "__main__":
    typer.run(main)
