"""What rest in silence changes and saves: words and processor time of joined recordings, with rest against without.

Each call has recordings of one source with pauses between them, so that its speaker speaks 45 % of the time, in a room:
digital silence, the recordings' own noise, or noise at 30, 20 and 10 dB below the speech. The words are compared with
those of the same call without rest: `changed` of its words, and of the first words after a pause those that are `lost`.

    python -m tutti_asr_lab.benchmarks.rest --data ../shared/data --rest 0.8,1.5,3.0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.evaluation.scoring import aligned, edit_distance
from model.recordings import Utterance, read_manifest, read_pcm
from server.audio.pcm import PCM
from server.replica import Replica
from server.settings import Settings
from server.tools.evaluate import TABLES, coded
from server.tools.local import LocalTranscriber, open_replica
from tutti_asr_client.messages import Results

SPEAKS = 0.45  # of the time
LONGEST_PAUSE_S = 12.0
CHUNK_S = 0.5
ROOMS = ("digital", "own", "30 dB", "20 dB", "10 dB")
RATES = {"wide band": (16_000, ""), "mulaw": (8_000, "mulaw")}

Spoken = list[tuple[str, float, float]]
"""Words of one call with their start and end in seconds."""


@dataclass(frozen=True)
class Call:
    """One side of a call at 16 kHz."""

    source: str
    room: str
    pcm: PCM
    reference: tuple[str, ...]
    firsts: frozenset[int]  # places of the first words of the recordings in it


def calls(utterances: Sequence[Utterance], noises: Sequence[Path], per_call: int) -> list[Call]:
    """Return the calls of a development set, the rooms in turn."""
    by_source: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        by_source.setdefault(utterance.source, []).append(utterance)
    made: list[Call] = []
    for source, members in sorted(by_source.items()):
        dice = random.Random(source)
        dice.shuffle(members)
        for begin in range(0, len(members), per_call):
            room = ROOMS[len(made) % len(ROOMS)]
            made.append(_call(source, room, members[begin : begin + per_call], noises, dice))
    return made


def _call(source: str, room: str, members: Sequence[Utterance], noises: Sequence[Path], dice: random.Random) -> Call:
    said = [read_pcm(member.audio) for member in members]
    parts: list[PCM] = []
    for pcm in said:
        mean_s = len(pcm) / 16_000 * (1 - SPEAKS) / SPEAKS
        pause = round(min(LONGEST_PAUSE_S, dice.expovariate(1 / mean_s) + 0.2) * 16_000)
        parts += [_room(pcm, pause) if room == "own" else np.zeros(pause, np.int16), pcm]
    whole = np.concatenate([*parts, np.zeros(16_000, np.int16)]).astype(np.float64)
    if room.endswith("dB"):
        noise = read_pcm(dice.choice(noises)).astype(np.float64)
        power = np.mean(np.concatenate(said).astype(np.float64) ** 2) / 10 ** (float(room.split(maxsplit=1)[0]) / 10)
        noise = np.resize(noise, len(whole))
        whole += noise * np.sqrt(power / max(1.0, float(np.mean(noise**2))))
    pcm16 = np.clip(np.rint(whole), -32_768, 32_767).astype(np.int16)
    texts = [member.text.split() for member in members]
    firsts = frozenset(sum(map(len, texts[:number])) for number in range(len(texts)))
    return Call(source, room, pcm16, tuple(word for text in texts for word in text), firsts)


def _room(pcm: PCM, samples: int) -> PCM:
    """Return the quietest 0.2 s of a recording, there and back until they last long enough."""
    size = 3_200
    if len(pcm) <= size:
        return np.zeros(samples, np.int16)
    power = [float(np.mean(pcm[at : at + size].astype(np.float64) ** 2)) for at in range(0, len(pcm) - size, size // 2)]
    begin = int(np.argmin(power)) * (size // 2)
    quiet = pcm[begin : begin + size]
    return np.resize(np.concatenate([quiet, quiet[::-1]]), samples)


async def recognized(replica: Replica, call: Call, rate: int, codec: str) -> Spoken:
    """Return the words of the finals."""
    pcm = (
        call.pcm if rate == 16_000 else call.pcm[: len(call.pcm) // 2 * 2].reshape(-1, 2).mean(axis=1).astype(np.int16)
    )
    if codec:
        table = TABLES[codec]()
        pcm = table[coded(pcm, table)]

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(pcm), round(CHUNK_S * rate)):
            yield pcm[at : at + round(CHUNK_S * rate)].tobytes()

    words: Spoken = []
    transcriber = LocalTranscriber(replica, rate, step_results=False)
    async for message in transcriber.stream(chunks()):
        if isinstance(message, Results) and message.is_final:
            words += [(word.word, word.start, word.end) for word in message.words]
    return words


async def run(replica: Replica, made: Sequence[Call], rest_s: float | None, band: str) -> tuple[list[Spoken], float]:
    """Return the words of each call, and the processor time of all."""
    here, (rate, codec) = replace(replica, limits=replace(replica.limits, rest_s=rest_s)), RATES[band]
    places, began_s = asyncio.Semaphore(8), time.process_time()

    async def one(call: Call) -> Spoken:
        async with places:
            return await recognized(here, call, rate, codec)

    words = await asyncio.gather(*(one(call) for call in made))
    return list(words), time.process_time() - began_s


def compared(call: Call, never: Spoken, resting: Spoken, pause_s: float) -> dict[str, int]:
    """Return the figures of one call. An onset is a word after a pause of at least `pause_s`."""
    before, after = [word for word, *_ in never], [word for word, *_ in resting]
    onsets = {
        number
        for number, (_, start_s, _) in enumerate(never)
        if start_s - (never[number - 1][2] if number else 0.0) >= pause_s
    }
    place, lost, changed = -1, 0, 0
    for old, new in aligned(before, after):
        if old is None:
            continue
        place += 1
        if place in onsets:
            lost += new is None
            changed += new is not None and new != old
    return {
        "words": len(before),
        "changed": edit_distance(before, after),
        "onsets": len(onsets),
        "onsets_lost": lost,
        "onsets_changed": changed,
        "first_words": len(call.firsts),
        "first_words_lost": len(_right(call, before) - _right(call, after)),
        "first_words_gained": len(_right(call, after) - _right(call, before)),
        "errors_without": edit_distance(call.reference, before),
        "errors_with": edit_distance(call.reference, after),
        "reference": len(call.reference),
    }


def _right(call: Call, words: Sequence[str]) -> set[int]:
    """Return the first words of recordings that were recognized, by their places in the reference."""
    place, right = -1, set[int]()
    for said, word in aligned(call.reference, words):
        place += said is not None
        if said is not None and said == word and place in call.firsts:
            right.add(place)
    return right


def total(rows: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Return sums, and shares in percent."""
    sums = {name: sum(row[name] for row in rows) for name in rows[0]}
    return {**sums, "changed_percent": round(100 * sums["changed"] / max(1, sums["words"]), 3)}


async def main(arguments: argparse.Namespace) -> None:
    """Measure, and print a line of JSON for each setting."""
    utterances = read_manifest(arguments.data / "dev.jsonl")
    noises = [
        noise.audio for noise in read_manifest(arguments.data / "noise.jsonl", texts=False) if noise.duration_s > 3
    ]
    made = calls(utterances, noises, arguments.per_call)[:: arguments.every]
    hours = sum(len(call.pcm) for call in made) / 16_000 / 3_600
    async with open_replica(Settings.model_validate({})) as replica:
        await run(replica, made[:1], None, "wide band")
        for band in arguments.bands.split(","):
            never, core_s = await run(replica, made, None, band)
            facts = {
                "band": band,
                "rest_s": None,
                "hours": round(hours, 3),
                "core_s_per_hour": round(core_s / hours, 1),
            }
            print(json.dumps(facts), flush=True)  # noqa: T201
            for rest_s in map(float, arguments.rest.split(",")):
                resting, rest_core_s = await run(replica, made, rest_s, band)
                rows = [compared(*three, rest_s) for three in zip(made, never, resting, strict=True)]
                by_room = {
                    room: total([row for call, row in zip(made, rows, strict=True) if call.room == room])
                    for room in sorted({call.room for call in made})
                }
                facts |= {"rest_s": rest_s, "core_s_per_hour": round(rest_core_s / hours, 1)}
                facts |= {"core_ratio": round(rest_core_s / core_s, 3), **total(rows), "by_room": by_room}
                print(json.dumps(facts), flush=True)  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rest", default="0.8,1.5,3.0")
    parser.add_argument("--bands", default="wide band,mulaw")
    parser.add_argument("--per-call", type=int, default=12)
    parser.add_argument("--every", type=int, default=1, help="take every n-th call")
    asyncio.run(main(parser.parse_args()))
