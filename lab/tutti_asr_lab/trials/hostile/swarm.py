"""Swarm of hostile clients: seeded attacks at a steady rate of messages with bounded concurrency.

Runs in a separate process with low priority, so that its CPU time does not add to the measured latencies.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

import uvloop

from loadtest.generator.recordings import cut, shipped_manifest
from tutti_asr_lab.trials.hostile import handshakes, streams
from tutti_asr_lab.trials.hostile.raw_connection import Act, Tally, Target, perform

Attack = Callable[[Target, random.Random], Act]

ATTACK_WITHIN_S = 20.0
"""An attack takes a few seconds; a longer one waits for a response that is missing."""
NICENESS = 19
"""Real hostile clients use other machines; here they get only CPU time that the server does not need."""

ATTACKS: Mapping[Attack, float] = {
    handshakes.garbage: 3, handshakes.truncated: 3, handshakes.slow_loris: 1, handshakes.giant_head: 1,
    handshakes.broken_handshake: 5, handshakes.bad_credentials: 5, handshakes.bad_origin: 2, handshakes.bad_query: 6,
    handshakes.half_open: 1, handshakes.bad_upload: 2, handshakes.bad_grant: 1, streams.random_frames: 5,
    streams.giant_messages: 0.5, streams.interleaved: 4, streams.wrong_order: 4, streams.bad_texts: 5,
    streams.bad_media: 2, streams.odd_audio: 1, streams.deaf: 0.3, streams.strange_close: 3, streams.impatient: 2,
    streams.pings: 0.5, streams.unsolicited_pongs: 0.3, streams.empty_frames: 0.5, streams.tiny_fragments: 0.5,
    streams.early_pings: 0.2, handshakes.pipelined: 0.5, streams.live_container: 3, handshakes.uploaded_container: 1,
}  # fmt: skip
"""Relative frequencies; attacks that make the server compute are rare, since that cost is not a fault."""


class Kind(StrEnum):
    """What the hostile clients send: everything, or only what is meant to cost the server much."""

    MIXED = "mixed"
    BODIES = "bodies"
    TEXTS = "texts"


OF_KIND: Mapping[Kind, Mapping[Attack, float]] = {
    Kind.MIXED: ATTACKS,
    Kind.BODIES: {handshakes.uploaded_body: 9, handshakes.dribbled_body: 1},
    Kind.TEXTS: {
        streams.damaged_json: 10,
        streams.long_contexts: 1,
        handshakes.new_key_terms: 2,
        handshakes.abandoned: 10,
    },
}


@dataclass(frozen=True, slots=True)
class Script:
    """Number of messages, their rate, concurrency, and the seed."""

    messages: int
    per_s: float = 300.0
    at_a_time: int = 32
    seed: int = 1
    kind: Kind = Kind.MIXED


async def attack(target: Target, script: Script, clock: Callable[[], float]) -> None:
    """Attack until all messages are sent and every attack has ended; counts in the target's tally."""
    rng = random.Random(script.seed)
    room = asyncio.Semaphore(script.at_a_time)
    chosen_from = OF_KIND[script.kind]
    kinds, weights = list(chosen_from), list(chosen_from.values())
    began_s, running = clock(), set[asyncio.Task[None]]()
    while target.tally.messages < script.messages:
        await room.acquire()
        await asyncio.sleep(max(0.0, began_s + target.tally.messages / script.per_s - clock()))
        (chosen,) = rng.choices(kinds, weights)
        task = asyncio.create_task(_attack_once(chosen, target, random.Random(rng.random()), room))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)


async def _attack_once(chosen: Attack, target: Target, rng: random.Random, room: asyncio.Semaphore) -> None:
    name = str(getattr(chosen, "__name__", chosen))
    target.tally.acts[name] += 1
    try:
        async with asyncio.timeout(ATTACK_WITHIN_S):
            await perform(target, chosen(target, rng), rng)
    except TimeoutError:
        target.tally.problems[f"{name}: not finished within {ATTACK_WITHIN_S:g} s"] += 1
    except OSError as error:
        target.tally.problems[f"{name}: {error.strerror or error}"] += 1
    finally:
        room.release()


def target_at(url: str, key: str, tally: Tally) -> Target:
    """Return a target with the server at `url` and the shipped recordings."""
    where = urlsplit(url)
    path = min(shipped_manifest().parent.glob("*.flac"))
    audio = b"".join(cut(path).messages)
    return Target(where.hostname or "127.0.0.1", where.port or 80, key, audio, path.read_bytes(), tally)


def attack_alone(url: str, key: str, script: Script) -> Tally:
    """Attack a server, in a process for this alone; returns counts of attacks and responses."""
    os.nice(NICENESS)
    tally = Tally()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(attack(target_at(url, key, tally), script, time.perf_counter))
    return tally
