"""Hostile clients alongside well-behaved ones, whose latency and texts must not suffer; nothing may break or leak.

`python -m tutti_asr_lab.trials.hostile` starts a server and plays live streams, alternately without and with clients
that send broken handshakes and messages of every kind; writes `loadtest/results/hostile.json` and `.md`. With `--kind
bodies` or `texts` they send what is meant to cost the server much: `hostile_bodies` and `hostile_texts`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import measure_levels
from loadtest.measurement.server_metrics import FILES, scrape_at
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from loadtest.served import served
from tutti_asr_lab.trials.hostile.raw_connection import Tally
from tutti_asr_lab.trials.hostile.swarm import Kind, Script
from tutti_asr_lab.trials.leftovers import IdleFigures, idle_figures, judge_leftovers

NAME = "hostile"

P98_SHARES = {Kind.MIXED: 1.2, Kind.BODIES: 1.5, Kind.TEXTS: 1.5}
"""Limit of the well-behaved streams' p98 with hostile clients, as a multiple of that without them.

Each round compares the two within two minutes; the median of the rounds is judged, since a shared machine has slow
minutes.
"""

IDLE_WITHIN_S = 30.0  # the server holds half-open connections for its idle and handshake timeouts
SPARE_S = 5.0  # added to the time that the messages of a round should take
FIRST_SHARE, FIRST_LEAST = 0.1, {Kind.MIXED: 1_000, Kind.BODIES: 100, Kind.TEXTS: 1_000}
"""Messages of the warm-up, as a share and as a minimum, which fill caches and grow memory to its working size."""

MEMORY_SHARE = 0.02
"""Allowed growth of the server's memory over all rounds: memory retained by the allocator."""

FAULTS = (500, 502, 504)  # status codes of server faults; 503 means that it is full


class Hostile(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    bars: tuple[Criterion, ...]
    tally: Tally
    errors_logged: dict[str, int]
    quiet: tuple[LevelReport, ...]  # by round, without attacks
    attacked: tuple[LevelReport, ...] = msgspec.field(name="beside")  # by round, during attacks
    before: IdleFigures
    after: IdleFigures
    files_before: float | None
    files_after: float | None
    environment: Environment


@dataclass(frozen=True, slots=True)
class Plan:
    """Script of the attacks, number of live streams, rounds, and seconds without attacks in each."""

    script: Script
    streams: int = 20
    quiet_s: float = 20.0
    rounds: int = 5

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.script.messages < 1 or self.script.per_s <= 0 or self.script.at_a_time < 1:
            raise BadSettings("--messages, --per-s and --at-a-time must be positive")
        if self.rounds < 1:
            raise BadSettings(f"--rounds {self.rounds}: must be at least 1")

    @property
    def scripts(self) -> tuple[Script, ...]:
        """Scripts of the rounds."""
        messages = -(-self.script.messages // self.rounds)
        return tuple(replace(self.script, messages=messages, seed=self.script.seed + i) for i in range(self.rounds))

    @property
    def warm_up(self) -> Script:
        """Script of the warm-up."""
        share = round(self.script.messages * FIRST_SHARE)
        messages = max(FIRST_LEAST[self.script.kind], share)
        return replace(self.script, messages=messages, seed=self.script.seed + self.rounds)


async def campaign(url: str, log: Path, key_file: Path, plan: Plan, base: LoadSettings, *, command: str) -> Hostile:
    """Measure the streams alternately without and with hostile clients, then check for leaks.

    Raises: LoadTestError, ClientError.
    """
    clock, progress = time.perf_counter, Console(stderr=True).print
    settings = replace(base, url=url, streams=(plan.streams,))
    tasks = (await idle_figures(url, clock, within_s=IDLE_WITHIN_S)).tasks
    await run_swarm(url, key_file, plan.warm_up)
    quiet: list[LevelReport] = []
    attacked: list[LevelReport] = []
    tallies: list[Tally] = []
    for number, script in enumerate(plan.scripts, start=1):
        progress(f"round {number} of {plan.rounds}: without hostile clients, then with {script.messages} messages")
        quiet_level = await measure_levels(replace(settings, seconds=plan.quiet_s), progress=progress)
        if number == 1:
            before = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=tasks)
            files_before = await _open_files(url)
        attacking = asyncio.create_task(run_swarm(url, key_file, script))
        among_s = script.messages / script.per_s + SPARE_S
        attacked_level = await measure_levels(replace(settings, seconds=among_s), progress=progress)
        tallies.append(await attacking)
        quiet += quiet_level.document.levels
        attacked += attacked_level.document.levels
    after = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=tasks)
    files_after = await _open_files(url)
    errors, tally = errors_in(log), total(tallies)
    before = msgspec.structs.replace(before, tasks=tasks)
    judged = judge(plan.script, tally, quiet, attacked, errors)
    judged += judge_leftovers(before, after, memory_share=MEMORY_SHARE)
    judged.append(Criterion("open files", (files_before or 0) + 1, files_after))  # one belongs to the scrape
    return Hostile(
        command,
        tuple(judged),
        tally,
        errors,
        tuple(quiet),
        tuple(attacked),
        before,
        after,
        files_before,
        files_after,
        attacked_level.document.environment,
    )


async def run_swarm(url: str, key_file: Path, script: Script) -> Tally:
    """Run the hostile clients in a separate process. Raises: BadSettings if it fails."""
    options = ("--messages", script.messages, "--per-s", script.per_s, "--at-a-time", script.at_a_time)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tutti_asr_lab.trials.hostile.swarm", url, *map(str, options), "--seed", str(script.seed),
        "--kind", script.kind,
        "--key-file", str(key_file), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
    if process.returncode:
        raise BadSettings(f"the process of the hostile clients failed with exit code {process.returncode}")
    return msgspec.json.decode(printed, type=Tally)


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of the tallies."""
    found = Tally(sum(tally.messages for tally in tallies))
    for tally in tallies:
        found.acts.update(tally.acts)
        found.statuses.update(tally.statuses)
        found.closes.update(tally.closes)
        found.problems.update(tally.problems)
    return found


def shares(quiet: Sequence[LevelReport], attacked: Sequence[LevelReport]) -> list[float]:
    """Return the ratio of chunk latency p98 with hostile clients to that without, for each measured round."""
    pairs = [(a.chunk_latency_ms, b.chunk_latency_ms) for a, b in zip(quiet, attacked, strict=True)]
    return [round(b.p98 / a.p98, 3) for a, b in pairs if a is not None and b is not None and a.p98]


def judge(
    script: Script, tally: Tally, quiet: Sequence[LevelReport], attacked: Sequence[LevelReport], errors: dict[str, int]
) -> list[Criterion]:
    """Return the criteria: latency and texts of the streams, responses to the attacks, errors in the log."""
    ratios = shares(quiet, attacked)
    share = statistics.median(ratios) if len(ratios) == len(attacked) else None
    return [
        Criterion("messages and handshakes that were not sent", 0, max(0, script.messages - tally.messages)),
        Criterion("chunk latency p98 with hostile clients, relative to without", P98_SHARES[script.kind], share),
        Criterion(
            "transcripts that differ from those alone", 0, sum(level.mismatched for level in (*quiet, *attacked))
        ),
        Criterion("transcripts that were not compared", 0, 0 if all(level.compared for level in attacked) else 1),
        Criterion("streams that failed or were refused", 0, sum(level.failed + level.refused for level in attacked)),
        Criterion("responses with a server error status", 0, sum(tally.statuses.get(status, 0) for status in FAULTS)),
        Criterion("attacks that did not end", 0, sum(tally.problems.values())),
        Criterion("errors in the server's log", 0, sum(errors.values())),
    ]


def errors_in(log: Path) -> dict[str, int]:
    """Count the errors in the server's log; a line that is not JSON counts as an error."""
    found: Counter[str] = Counter()
    for line in log.read_bytes().splitlines():
        try:
            entry = json.loads(line)
            if entry.get("level") in ("error", "critical"):
                found[str(entry.get("event")).splitlines()[0]] += 1
        except (ValueError, AttributeError):
            found[line.decode(errors="replace")[:120]] += 1
    return dict(found)


def markdown(found: Hostile) -> str:
    """Return the page."""
    tally = found.tally
    lines = ["# Hostile clients", "", f"`{found.command}`", ""]
    lines += [f"{tally.messages} broken, giant, slow, misplaced and endless messages, handshakes and uploads in "]
    lines[-1] += f"{sum(tally.acts.values())} connections, alongside {found.attacked[0].streams} live streams."
    lines += ["", *table(found.bars), ""]
    lines += ["| round | p50, p98 without them, ms | p50, p98, max with them, ms | ratio of p98 | compared | differ |"]
    lines += ["|---:|---:|---:|---:|---:|---:|"]
    for number, (alone, among) in enumerate(zip(found.quiet, found.attacked, strict=True), start=1):
        a, b = alone.chunk_latency_ms, among.chunk_latency_ms
        cells = "| – | – | – |"
        if a is not None and b is not None:
            cells = f"| {a.p50:.1f}, {a.p98:.1f} | {b.p50:.1f}, {b.p98:.1f}, {b.max:.1f} | {b.p98 / a.p98:.2f} |"
        lines += [f"| {number} {cells} {alone.compared + among.compared} | {alone.mismatched + among.mismatched} |"]
    lines += [""]
    for name, counts in (("Responses", tally.statuses), ("Close codes", tally.closes), ("Attacks", tally.acts)):
        lines += [f"{name}: {_counts(counts.items())}.  "]
    lines += [f"Memory of the idle server: {found.before.memory_mib} MiB before, {found.after.memory_mib} MiB after.  "]
    return "\n".join([*lines, "", *place_lines(found.environment), ""])


def _counts(items: Iterable[tuple[object, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(items, key=lambda item: -item[1])) or "none"


async def _open_files(url: str) -> float | None:
    return (await scrape_at(url, time.perf_counter(), time.perf_counter)).values.get(FILES)


def run(plan: Plan, base: LoadSettings, options: Sequence[str], folder: Path, command: str) -> int:
    """Start a server, run the measurement, print, write; returns the exit code. Raises: LoadTestError, ClientError."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tutti-") as name:
        place = Path(name)
        key, hostile_key = secrets.token_urlsafe(), secrets.token_urlsafe()  # limits hold for each
        keys, log = place / "keys", place / "log"
        digests = [hashlib.sha256(secret.encode()).hexdigest() for secret in (key, hostile_key)]
        keys.write_text("\n".join([*digests, ""]), encoding="utf-8")
        (place / "key").write_text(hostile_key, encoding="utf-8")
        served_with = ("--api-keys-file", str(keys), "--log-format", "json", *options)
        with served(served_with, log) as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            known = replace(base, api_key=key)
            found = runner.run(campaign(url, log, place / "key", plan, known, command=command))
    for level in found.attacked:
        print_remarks(level, console)
    for error, count in (found.errors_logged | found.tally.problems).items():
        console.print(f"{count} × {error}", style="red", highlight=False, markup=False)
    name = NAME if plan.script.kind is Kind.MIXED else f"{NAME}_{plan.script.kind}"
    return conclude(found, found.bars, markdown(found), folder, name)


def main(
    *,
    messages: Annotated[int, typer.Option(help="Hostile messages and handshakes.")] = 200_000,
    per_s: Annotated[float, typer.Option(help="Hostile messages per second.")] = 300.0,
    at_a_time: Annotated[int, typer.Option(help="Concurrent hostile connections.")] = 32,
    streams: Annotated[int, typer.Option(help="Well-behaved live streams.")] = 20,
    quiet_s: Annotated[float, typer.Option(help="Seconds without hostile clients in each round.")] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds, each without and with hostile clients.")] = 5,
    serve_option: ServeOptions = None,
    seed: Annotated[int, typer.Option(help="Random seed of the attacks.")] = 1,
    kind: Annotated[Kind, typer.Option(help="What is sent; each writes a page of its own.")] = Kind.MIXED,
    folder: Folder = RESULTS,
) -> None:
    """Attack a server started here; measure well-behaved streams and check for leaks."""

    def work(command: str) -> int:
        plan = Plan(Script(messages, per_s, at_a_time, seed, kind), streams, quiet_s, rounds)
        return run(plan, LoadSettings("", (1,), seed=seed), serve_option or (), folder, command)

    carry_out("tutti_asr_lab.trials.hostile", work)


if __name__ == "__main__":
    typer.run(main)
