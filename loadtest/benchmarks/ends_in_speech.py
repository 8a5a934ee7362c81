"""Ends of utterances and turns that fall into speech, and their delay after the end of speech, in audio time.

    python -m loadtest.benchmarks.ends_in_speech --manifest alnum_numbers.jsonl --manifest commonvoice_en.jsonl

Each recording is sent with two seconds of its own quietest part after it. An end is *in speech* if silero finds no
silence of 0.1 s around it, *loud* if the last 150 ms before it are above -35 dBFS, and *short* if the longest quiet
(30 dB below the loudest 2 % of the recording) in the last 1.2 s before it is shorter than half of the silence that was
asked for; noise makes an end loud and its quiet short, too. Delays are from silero's end of speech to the first end at
or after it; the latency of the server is not in them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from loadtest.program import ServerUrl, carry_out
from loadtest.rulers.turns.silences import RATE, Listener, with_quiet
from loadtest.served import server_at
from model.recordings import PCM, read_manifest, read_pcm

LOUD_DB, LOUD_S = -35.0, 0.15
LEVEL = RATE // 50  # samples of a level
QUIET_DB, LOUDEST_PERCENT, BEFORE_S = 30.0, 98.0, 1.2
EARLY_S = 0.1  # before silero's end of speech, in which an end still belongs to it
PIECE = RATE // 10  # samples of a message
TOGETHER = 8  # recordings at a time
IDLE_S = 3.0  # without a message, after which a Realtime session is over

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wire:
    """A way to ask for ends: its address, its first message, and the audio time of an end in a message, if it is one.

    `asked_s`: the silence in the audio that was asked for.
    """

    path: str
    asked_s: float
    end_s: Callable[[Message], float | None]
    first: Message | None = None


def _speech_final(message: Message) -> float | None:
    if not message.get("speech_final") or not message["channel"]["alternatives"][0]["transcript"]:
        return None
    return float(message["start"] + message["duration"])


def _end_of_turn(message: Message) -> float | None:
    return float(message["audio_window_end"]) if message.get("trigger") == "model" else None


def _speech_stopped(message: Message) -> float | None:
    return message["audio_end_ms"] / 1e3 if message["type"] == "input_audio_buffer.speech_stopped" else None


def _listen(asked: str, asked_s: float) -> Wire:
    return Wire(f"/v1/listen?encoding=linear16&sample_rate={RATE}&endpointing={asked}", asked_s, _speech_final)


def _realtime(asked_s: float, **turns: object) -> Wire:
    form = {"type": "audio/pcm", "rate": RATE}
    session = {"type": "transcription", "audio": {"input": {"format": form, "turn_detection": turns}}}
    path = "/v1/realtime?intent=transcription"
    return Wire(path, asked_s, _speech_stopped, {"type": "session.update", "session": session})


WIRES = {
    "endpointing=10": _listen("10", 0.4),
    "endpointing=400": _listen("400", 0.4),
    "endpointing=smart": _listen("smart", 0.72),
    "server_vad": _realtime(0.5, type="server_vad", silence_duration_ms=500),
    "semantic_vad high": _realtime(0.72, type="semantic_vad", eagerness="high"),
    "semantic_vad low": _realtime(1.03, type="semantic_vad", eagerness="low"),
    "flux": Wire(
        f"/v2/listen?model=flux-general-en&encoding=linear16&sample_rate={RATE}&eot_threshold=0.7", 0.46, _end_of_turn
    ),
}


@dataclass(frozen=True, slots=True)
class Spoken:
    """A recording with quiet after it, and its silences by silero, as `Turn.silences`."""

    pcm: PCM
    silences: tuple[tuple[float, float | None], ...]

    @property
    def end_s(self) -> float:
        """End of speech."""
        return self.silences[-1][0]

    def is_silent(self, at_s: float) -> bool:
        """Whether it is silent there."""
        return any(
            start_s <= at_s and (length_s is None or at_s < start_s + length_s) for start_s, length_s in self.silences
        )


async def ends_of(url: str, wire: Wire, pcm: PCM, pace: float) -> list[float]:
    """Send a recording at `pace` times real time; return the audio times of its ends."""
    found: list[float] = []
    async with connect(url + wire.path, max_size=None, proxy=None) as socket:
        if wire.first is not None:
            await socket.send(json.dumps(wire.first))

        async def send() -> None:
            for start in range(0, len(pcm), PIECE):
                audio = pcm[start : start + PIECE].tobytes()
                append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()}
                await socket.send(audio if wire.first is None else json.dumps(append))
                await asyncio.sleep(PIECE / RATE / pace)
            if wire.first is None:
                await socket.send(json.dumps({"type": "CloseStream"}))

        sending = asyncio.create_task(send())
        while True:
            try:
                message = json.loads(await asyncio.wait_for(socket.recv(), None if wire.first is None else IDLE_S))
            except TimeoutError:
                if sending.done():
                    break
                continue
            except ConnectionClosed:
                break
            end_s = wire.end_s(message)
            if end_s is not None:
                found.append(end_s)
        await sending
    return found


async def _all_ends(url: str, wire: Wire, recordings: Sequence[Spoken], pace: float) -> list[list[float]]:
    gate = asyncio.Semaphore(TOGETHER)

    async def one(each: Spoken) -> list[float]:
        async with gate:
            return await ends_of(url, wire, each.pcm, pace)

    return list(await asyncio.gather(*map(one, recordings)))


def is_loud(pcm: PCM, end_s: float) -> bool:
    """Whether the last 150 ms before an end are above -35 dBFS."""
    end = round(end_s * RATE)
    last = pcm[max(0, end - round(LOUD_S * RATE)) : end].astype(np.float64) / 32_768
    return bool(10 * np.log10(np.mean(last**2) + 1e-12) > LOUD_DB)


def longest_quiet_s(pcm: PCM, end_s: float) -> float:
    """Return the longest quiet in the last 1.2 s before an end."""
    blocks = pcm[: len(pcm) // LEVEL * LEVEL].reshape(-1, LEVEL).astype(np.float64)
    levels = 10 * np.log10(np.mean(blocks**2, axis=1) + 1.0)
    quiet = levels < np.percentile(levels, LOUDEST_PERCENT) - QUIET_DB
    end, longest, run = round(end_s * RATE) // LEVEL, 0, 0
    for each in quiet[max(0, end - round(BEFORE_S * RATE / LEVEL)) : end]:
        run = run + 1 if each else 0
        longest = max(longest, run)
    return longest * LEVEL / RATE


def figures(wire: Wire, recordings: Sequence[Spoken], ends: Sequence[Sequence[float]]) -> dict[str, object]:
    """Return the figures of one set of recordings."""
    pairs = [(each, end_s) for each, found in zip(recordings, ends, strict=True) for end_s in found]
    delays = []
    for each, found in zip(recordings, ends, strict=True):
        delays += [end_s - each.end_s for end_s in found if end_s >= each.end_s - EARLY_S][:1]
    p50, p95 = np.percentile(delays, [50, 95]) * 1e3 if delays else (0.0, 0.0)
    return {
        "recordings": len(recordings),
        "ends": len(pairs),
        "in_speech": sum(not each.is_silent(end_s) for each, end_s in pairs),
        "loud": sum(is_loud(each.pcm, end_s) for each, end_s in pairs),
        "short": sum(longest_quiet_s(each.pcm, end_s) < wire.asked_s / 2 for each, end_s in pairs),
        "ended": len(delays),
        "delay_p50_ms": round(float(p50)),
        "delay_p95_ms": round(float(p95)),
    }


def measure(command: str, url: str | None, manifests: Sequence[Path], most: int, pace: float) -> int:
    """Print the figures, the last line as JSON."""
    listener, sets = Listener(), dict[str, list[Spoken]]()
    for manifest in manifests:
        lines = read_manifest(manifest)
        for line in lines[:: max(1, len(lines) // most)][:most]:
            pcm = with_quiet(read_pcm(line.audio, RATE))
            if silences := listener.silences(pcm):
                sets.setdefault(manifest.stem, []).append(Spoken(pcm, silences))
    result: dict[str, Any] = {"command": command}
    with server_at(url, ("--front-ends", "0", "--max-streams", str(2 * TOGETHER))) as address:
        for name, wire in WIRES.items():
            for stem, recordings in sets.items():
                ends = asyncio.run(_all_ends(address, wire, recordings, pace))
                result[f"{name}, {stem}"] = row = figures(wire, recordings, ends)
                typer.echo(f"{name}, {stem}: {json.dumps(row)}")
    typer.echo(json.dumps(result))
    return 0


def main(
    manifest: Annotated[list[Path], typer.Option(help="Recordings as JSON lines; repeatable.")],
    url: ServerUrl = None,
    most: Annotated[int, typer.Option(help="Number of recordings of each manifest at most.")] = 20,
    pace: Annotated[float, typer.Option(help="Speed of the audio in real time.")] = 10.0,
) -> None:
    """Measure ends of utterances and turns."""
    carry_out("loadtest.benchmarks.ends_in_speech", lambda command: measure(command, url, manifest, most, pace))


if __name__ == "__main__":
    typer.run(main)
