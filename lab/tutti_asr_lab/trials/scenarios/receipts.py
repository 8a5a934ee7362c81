"""Receipts under load: many streams at once, each replayed alone as on several processors; and what receipts cost.

`python -m tutti_asr_lab.trials.receipts` starts a server, streams recordings in real time with `receipt=true` and
several options, stores audio and messages, and runs `tutti replay` over all of them here, as on a processor with AVX2
alone, and as on any x86-64. It also compares the CPU time of the server with and without receipts, in rounds that
alternate. Writes a document and a page to the folder of the results.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode, urlsplit

import msgspec
import typer
import uvloop
from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect

from loadtest.errors import BadSettings, LoadTestError
from loadtest.generator.recordings import Recording, load
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.measurement.server_metrics import CPU_S, metrics_at
from loadtest.program import RESULTS, Folder, Manifest, Seed, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.served import ALL_IN, ONE_PROCESS, ROOT, served

NAME = "receipts"
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

COST = 0.02
"""Share of the processor time that receipts may add."""

FINALIZE_EVERY = 7  # streams, of which one asks for a flush in the middle


@dataclass(frozen=True, slots=True)
class Plan:
    """Streams at once, seconds of each, rounds of the comparison of CPU time (0: none), and the random seed."""

    streams: int = 200
    seconds: float = 20.0
    rounds: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.streams < 1 or self.seconds <= 0 or self.rounds < 0:
            raise BadSettings("--streams and --seconds must be positive, --rounds at least 0")


class Audited(msgspec.Struct, frozen=True):
    """Result of the replays as on one processor."""

    processor: str
    seconds: float
    exit_code: int
    output: str


class Receipts(msgspec.Struct, frozen=True):
    """The result document. `cpu_s`: of the server by round, without and with receipts."""

    command: str
    bars: tuple[Criterion, ...]
    streams: int
    finals: int
    audits: tuple[Audited, ...]
    cpu_s: tuple[tuple[float, float], ...]


class Streams:
    """Live streams of random recordings, paced in real time."""

    def __init__(self, url: str, recordings: Sequence[Recording], plan: Plan) -> None:
        self._url, self._recordings, self._plan = url, recordings, plan

    async def run(self, folder: Path | None) -> int:
        """Run all of them; store audio and messages in the folder, None: without receipts. Returns their finals."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_one(number, folder)) for number in range(self._plan.streams)]
        return sum(task.result() for task in tasks)

    async def _run_one(self, number: int, folder: Path | None) -> int:
        dice = random.Random(f"{self._plan.seed} {number}")
        messages = self._messages(dice)
        await asyncio.sleep(dice.random())
        receipts = {} if folder is None else {"receipt": "true"}
        raw = {"encoding": "linear16", "sample_rate": str(SAMPLE_RATE)}
        query = {**raw, **receipts, **VARIANTS[number % len(VARIANTS)]}
        flush_at = len(messages) // 2 if number % FINALIZE_EVERY == 0 else -1
        address = f"{self._url}/v1/listen?{urlencode(query)}"
        async with connect(address, compression=None, open_timeout=30, max_queue=None) as socket:
            sender = asyncio.create_task(_send(socket, messages, flush_at))
            frames = [str(frame) async for frame in socket]
            await sender
        if folder is not None:
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


def cpu_seconds(url: str) -> float:
    """Return the CPU time of the server's processes so far. Raises: LoadTestError."""
    spent = metrics_at(urlsplit(url).port or 80).get(CPU_S)
    if spent is None:
        raise LoadTestError("the server does not report its CPU time")
    return spent


def audit(folder: Path, keys: Path, processor: str) -> Audited:
    """Replay all streams of a folder in a process that takes itself to be on this processor."""
    names = {name for switches in PROCESSORS.values() for name in switches}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "server.cli", "replay", str(folder), "--keys", str(keys)]
    began_s = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        cwd=ROOT,
        env={**environment, **PROCESSORS[processor]},
        capture_output=True,
        text=True,
        check=False,
    )
    output = (done.stdout + done.stderr).strip()
    return Audited(processor, round(time.perf_counter() - began_s, 1), done.returncode, output)


def compare_costs(runner: asyncio.Runner, url: str, streams: Streams, rounds: int) -> list[tuple[float, float]]:
    """Return the server's CPU seconds without and with receipts, each round in the other order."""
    found = []
    with tempfile.TemporaryDirectory(prefix="tutti-") as name:
        for number in range(rounds):
            spent = {}
            for receipts in (False, True) if number % 2 else (True, False):
                before_s = cpu_seconds(url)
                runner.run(streams.run(Path(name) if receipts else None))
                spent[receipts] = cpu_seconds(url) - before_s
            found.append((round(spent[False], 3), round(spent[True], 3)))
            Console(stderr=True).print(f"round {number + 1}: {spent[False]:.2f} s without, {spent[True]:.2f} s with")
    return found


def measure(plan: Plan, manifest: Path | None, options: Sequence[str], command: str) -> Receipts:
    """Run everything. Raises: LoadTestError."""
    recordings = load(manifest, level_s=plan.seconds, at_most=plan.streams, seed=plan.seed)
    with tempfile.TemporaryDirectory(prefix="tutti-") as name:
        folder, key, public = Path(name) / "streams", Path(name) / "key.json", Path(name) / "public.json"
        folder.mkdir()
        make = [sys.executable, "-m", "server.cli", "keys", "receipt", "--file", str(key)]
        public.write_text(subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        with (
            served([*ALL_IN, *ONE_PROCESS, "--receipt-key-file", str(key), *options]) as url,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            streams = Streams(url, recordings, plan)
            finals = runner.run(streams.run(folder))
            cpu_s = compare_costs(runner, url, streams, plan.rounds)
        audits = [audit(folder, public, processor) for processor in PROCESSORS]
    return Receipts(command, tuple(judge(audits, cpu_s)), plan.streams, finals, tuple(audits), tuple(cpu_s))


def judge(audits: Sequence[Audited], cpu_s: Sequence[tuple[float, float]]) -> list[Criterion]:
    """Return the criteria."""
    bars = [Criterion(f"replays as on {each.processor}: exit code", 0, each.exit_code) for each in audits]
    if cpu_s:
        cost = statistics.median(with_s / without_s - 1 for without_s, with_s in cpu_s)
        bars.append(Criterion("CPU time that receipts add, median of rounds, as a share", COST, round(cost, 4)))
    return bars


def markdown(found: Receipts) -> str:
    """Return the page."""
    lines = ["# Receipts", "", f"`{found.command}`", "", *table(found.bars), ""]
    lines += [f"{found.streams} streams at once, {found.finals} finals, each stream replayed alone:", ""]
    lines += [f"- {each.processor}: {each.output} ({each.seconds:g} s)" for each in found.audits]
    rounds = [f"{without_s:g} and {with_s:g}" for without_s, with_s in found.cpu_s]
    lines += ["", f"CPU seconds of the server without and with receipts, by round: {', '.join(rounds) or 'none'}."]
    return "\n".join([*lines, ""])


def main(
    *,
    streams: Annotated[int, typer.Option(help="Streams at once.")] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds of audio of each.")] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds of the comparison of CPU time; 0: none.")] = 5,
    manifest: Manifest = None,
    seed: Seed = 1,
    serve_option: ServeOptions = None,
    folder: Folder = RESULTS,
) -> None:
    """Stream with receipts under load, replay every stream alone on several processors, and measure the cost."""

    def work(command: str) -> int:
        found = measure(Plan(streams, seconds, rounds, seed), manifest, list(serve_option or ()), command)
        return conclude(found, found.bars, markdown(found), folder, NAME)

    carry_out("tutti_asr_lab.trials.receipts", work)


if __name__ == "__main__":
    typer.run(main)
