"""Receipts under load: many streams at once, each replayed alone as on several processors.

Streams recordings in real time with `receipt=true` and several options, stores audio and messages, and runs `tutti
audit` over all of them here, as on a processor with AVX2 alone, and as on any x86-64.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import msgspec
import typer
from websockets.asyncio.client import ClientConnection, connect

from loadtest.generator.recordings import Recording, load
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.program import Manifest
from loadtest.reports.criteria import Criterion
from loadtest.served import ALL_IN, ONE_PROCESS, ROOT, served
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, run_async

PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "this one": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "any x86-64": {"ATEN_CPU_CAPABILITY": "default"},
}
"""Environments in which a replay takes the code of an older processor (tests/support/processors.py)."""

VARIANTS: tuple[Mapping[str, str], ...] = (
    {},
    {"interim_results": "true", "smart_format": "true"},
    {"keyterm": "account number", "utterance_end_ms": "1000"},
    {"redact": "pci", "endpointing": "500"},
    {"step_results": "true", "endpointing": "false"},
)
"""Options of the streams in turn."""

FINALIZE_EVERY = 7  # streams, of which one asks for a flush in the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Streams at once, and seconds of each."""

    streams: Annotated[int, typer.Option(help="Streams at once.", min=1)] = 200
    seconds: Annotated[float, typer.Option(help="Seconds of audio of each.", min=0.1)] = 20.0
    manifest: Manifest = None


class Audited(msgspec.Struct, frozen=True):
    """Result of the replays as on one processor."""

    processor: str
    seconds: float
    exit_code: int
    output: str


class Streams:
    """Live streams of random recordings, paced in real time."""

    def __init__(self, url: str, recordings: Sequence[Recording], plan: Plan) -> None:
        self._url, self._recordings, self._plan = url, recordings, plan

    async def run(self, folder: Path) -> int:
        """Run all of them; store audio and messages in the folder. Returns their finals."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_one(number, folder)) for number in range(self._plan.streams)]
        return sum(task.result() for task in tasks)

    async def _run_one(self, number: int, folder: Path) -> int:
        dice = random.Random(f"{self._plan.seed} {number}")
        messages = self._messages(dice)
        await asyncio.sleep(dice.random())
        raw = {"encoding": "linear16", "sample_rate": str(SAMPLE_RATE)}
        query = {**raw, "receipt": "true", **VARIANTS[number % len(VARIANTS)]}
        flush_at = len(messages) // 2 if number % FINALIZE_EVERY == 0 else -1
        address = f"{self._url}/v1/listen?{urlencode(query)}"
        async with connect(address, compression=None, open_timeout=30, max_queue=None) as socket:
            sender = asyncio.create_task(_send(socket, messages, flush_at))
            frames = [str(frame) async for frame in socket]
            await sender
        (folder / f"{number:04}.raw").write_bytes(b"".join(messages))
        (folder / f"{number:04}.jsonl").write_text("\n".join(frames))
        return sum('"is_final":true' in frame for frame in frames)

    def _messages(self, dice: random.Random) -> list[bytes]:
        """Return recordings one after another, as long as the plan's streams."""
        found: list[bytes] = []
        size = int(self._plan.seconds * SAMPLE_RATE * 2)
        while sum(map(len, found)) < size:
            found += dice.choice(self._recordings).messages
        return found


async def _send(socket: ClientConnection, messages: Sequence[bytes], flush_at: int) -> None:
    """Send audio in real time, a flush before one of the messages, and the end."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    for number, message in enumerate(messages):
        if number == flush_at:
            await socket.send('{"type":"Finalize"}')
        await socket.send(message)
        due_s += len(message) / (2 * SAMPLE_RATE)
        await asyncio.sleep(due_s - loop.time())
    await socket.send('{"type":"CloseStream"}')


def audit(folder: Path, keys: Path, processor: str) -> Audited:
    """Replay all streams of a folder in a process that takes itself to be on this processor."""
    names = {name for switches in PROCESSORS.values() for name in switches}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "server.cli", "replay", str(folder), "--keys", str(keys)]
    began_s = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=ROOT, env={**environment, **PROCESSORS[processor]}, capture_output=True, text=True, check=False
    )
    output = done.stdout.strip() or done.stderr.strip()  # progress of compiling is on the latter
    return Audited(processor, round(time.perf_counter() - began_s, 1), done.returncode, output)


def play(plan: Plan) -> TrialReport:
    """Stream with receipts under load, and replay every stream alone on several processors."""
    recordings = load(plan.manifest, level_s=plan.seconds, at_most=plan.streams, seed=plan.seed)
    with tempfile.TemporaryDirectory(prefix="tutti-") as name:
        folder, key, public = Path(name) / "streams", Path(name) / "key.json", Path(name) / "public.json"
        folder.mkdir()
        make = [sys.executable, "-m", "server.cli", "keys", "receipt", "--file", str(key)]
        public.write_text(subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        with served([*ALL_IN, *ONE_PROCESS, "--receipt-key-file", str(key), *plan.serve_options]) as url:
            finals = run_async(Streams(url, recordings, plan).run(folder))
        audits = [audit(folder, public, processor) for processor in PROCESSORS]
    return report_of(plan, finals, audits)


def report_of(plan: Plan, finals: int, audits: Sequence[Audited]) -> TrialReport:
    """Judge the replays."""
    return TrialReport(
        title="Receipts",
        intro=f"{plan.streams} streams at once, {finals} finals, each stream replayed alone.",
        bars=tuple(Criterion(f"replays as on {each.processor}: exit code", 0, each.exit_code) for each in audits),
        lines=tuple(f"{each.processor}: {each.output} ({each.seconds:g} s)" for each in audits),
        figures={"audits": tuple(audits)},
    )
