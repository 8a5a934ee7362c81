"""Hostile clients alongside well-behaved ones, whose latency and texts must not suffer; nothing may break or leak.

Live streams are played alternately without and with clients that send broken handshakes and messages of every kind.
With `--kind bodies` or `texts` they send what is meant to cost the server much.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from loadtest.measurement.server_metrics import FILES, scrape_at
from loadtest.reports.criteria import Criterion
from loadtest.reports.pages import percentile
from loadtest.served import served
from tutti_asr_lab.trials.hostile.raw_connection import Tally
from tutti_asr_lab.trials.hostile.swarm import Kind, Script, attack_alone
from tutti_asr_lab.trials.leftovers import idle_figures, judge_leftovers
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, run_async, say

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
HEADINGS = ("round", "p50, p98 without them, ms", "p50, p98, max with them, ms", "ratio of p98", "compared", "differ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Messages of the attacks, live streams, rounds, and seconds without attacks in each."""

    messages: Annotated[int, typer.Option(help="Hostile messages and handshakes.", min=1)] = 200_000
    per_s: Annotated[float, typer.Option(help="Hostile messages per second.", min=0.01)] = 300.0
    at_a_time: Annotated[int, typer.Option(help="Concurrent hostile connections.", min=1)] = 32
    streams: Annotated[int, typer.Option(help="Well-behaved live streams.", min=1)] = 20
    quiet_s: Annotated[float, typer.Option(help="Seconds without hostile clients in each round.")] = 20.0
    rounds: Annotated[int, typer.Option(help="Rounds, each without and with hostile clients.", min=1)] = 5
    kind: Annotated[Kind, typer.Option(help="What is sent; each writes a page of its own.")] = Kind.MIXED

    @property
    def result(self) -> str:
        """Name of the result files."""
        return "hostile" if self.kind is Kind.MIXED else f"hostile_{self.kind}"

    @property
    def scripts(self) -> tuple[Script, ...]:
        """Scripts of the warm-up and of the rounds."""
        first = max(FIRST_LEAST[self.kind], round(self.messages * FIRST_SHARE))
        each = -(-self.messages // self.rounds)
        return tuple(
            Script(each if number else first, self.per_s, self.at_a_time, self.seed + number, self.kind)
            for number in range(self.rounds + 1)
        )


def play(plan: Plan) -> TrialReport:
    """Attack a server started here; measure well-behaved streams and check for leaks."""
    key, hostile_key = secrets.token_urlsafe(), secrets.token_urlsafe()  # limits hold for each
    with tempfile.TemporaryDirectory(prefix="tutti-") as name:
        keys, log = Path(name) / "keys", Path(name) / "log"
        digests = [hashlib.sha256(secret.encode()).hexdigest() for secret in (key, hostile_key)]
        keys.write_text("\n".join([*digests, ""]), encoding="utf-8")
        options = ("--api-keys-file", str(keys), "--log-format", "json", *plan.serve_options)
        with served(options, log) as url:
            settings = LoadSettings(url, (plan.streams,), seed=plan.seed, api_key=key)
            return run_async(campaign(plan, settings, hostile_key, log))


async def campaign(plan: Plan, settings: LoadSettings, hostile_key: str, log: Path) -> TrialReport:
    """Measure the streams alternately without and with hostile clients, then check for leaks.

    Raises: LoadTestError, ClientError.
    """
    loop, url, clock = asyncio.get_running_loop(), settings.url, time.perf_counter
    tasks = (await idle_figures(url, clock, within_s=IDLE_WITHIN_S)).tasks
    levels, tallies, before, files = list[LevelReport](), list[Tally](), None, list[float | None]()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        first, *scripts = plan.scripts
        await loop.run_in_executor(alone, attack_alone, url, hostile_key, first)
        for number, script in enumerate(scripts, 1):
            say(f"round {number} of {plan.rounds}: without hostile clients, then with {script.messages} messages")
            quiet = await measure_levels(replace(settings, seconds=plan.quiet_s), progress=say)
            if before is None:
                before = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=tasks)
                files.append(await _open_files(url))
            attacking = loop.run_in_executor(alone, attack_alone, url, hostile_key, script)
            among_s = script.messages / script.per_s + SPARE_S
            attacked = await measure_levels(replace(settings, seconds=among_s), progress=say)
            tallies.append(await attacking)
            levels += (*quiet.document.levels, *attacked.document.levels)
    after = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=tasks)
    files.append(await _open_files(url))
    assert before is not None, "there is a round"
    left = judge_leftovers(msgspec.structs.replace(before, tasks=tasks), after, memory_share=MEMORY_SHARE)
    left.append(Criterion("open files", (files[0] or 0) + 1, files[1]))  # one belongs to the scrape
    tally, errors = total(tallies), errors_in(log)
    counts = (("Responses", tally.statuses), ("Close codes", tally.closes), ("Attacks", tally.acts))
    sent = f"{tally.messages} broken, giant, slow, misplaced and endless messages, handshakes and uploads in "
    return TrialReport(
        title="Hostile clients",
        intro=f"{sent}{sum(tally.acts.values())} connections, alongside {plan.streams} live streams.",
        bars=(*judge(plan, tally, levels[::2], levels[1::2], errors), *left),
        rows=(HEADINGS, *map(_row, range(1, plan.rounds + 1), levels[::2], levels[1::2])),
        lines=(
            *(f"{name}: {_counted(counted)}." for name, counted in counts),
            f"Memory of the idle server: {before.memory_mib} MiB before, {after.memory_mib} MiB after.",
        ),
        figures={"tally": tally, "errors_logged": errors, "before": before, "after": after, "files": files},
        levels=tuple(levels),
        problems=tuple(f"{count} × {problem}" for problem, count in (errors | tally.problems).items()),
    )


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of the tallies."""
    added = Tally(sum(tally.messages for tally in tallies))
    for tally in tallies:
        added.acts.update(tally.acts)
        added.statuses.update(tally.statuses)
        added.closes.update(tally.closes)
        added.problems.update(tally.problems)
    return added


def shares(quiet: Sequence[LevelReport], attacked: Sequence[LevelReport]) -> list[float]:
    """Return the ratio of chunk latency p98 with hostile clients to that without, for each measured round."""
    pairs = [(a.chunk_latency_ms, b.chunk_latency_ms) for a, b in zip(quiet, attacked, strict=True)]
    return [round(b.p98 / a.p98, 3) for a, b in pairs if a is not None and b is not None and a.p98]


def judge(
    plan: Plan, tally: Tally, quiet: Sequence[LevelReport], attacked: Sequence[LevelReport], errors: dict[str, int]
) -> list[Criterion]:
    """Return the criteria: latency and texts of the streams, responses to the attacks, errors in the log."""
    ratios = shares(quiet, attacked)
    share = statistics.median(ratios) if len(ratios) == len(attacked) else None
    mismatched = sum(level.mismatched for level in (*quiet, *attacked))
    return [
        Criterion("messages and handshakes that were not sent", 0, max(0, plan.messages - tally.messages)),
        Criterion("chunk latency p98 with hostile clients, relative to without", P98_SHARES[plan.kind], share),
        Criterion("transcripts that differ from those alone", 0, mismatched),
        Criterion("transcripts that were not compared", 0, 0 if all(level.compared for level in attacked) else 1),
        Criterion("streams that failed or were refused", 0, sum(level.failed + level.refused for level in attacked)),
        Criterion("responses with a server error status", 0, sum(tally.statuses.get(status, 0) for status in FAULTS)),
        Criterion("attacks that did not end", 0, sum(tally.problems.values())),
        Criterion("errors in the server's log", 0, sum(errors.values())),
    ]


def errors_in(log: Path) -> dict[str, int]:
    """Count the errors in the server's log; a line that is not JSON counts as an error."""
    errors: Counter[str] = Counter()
    for line in log.read_bytes().splitlines():
        try:
            entry = json.loads(line)
            if entry.get("level") in ("error", "critical"):
                errors[str(entry.get("event")).splitlines()[0]] += 1
        except (ValueError, AttributeError):
            errors[line.decode(errors="replace")[:120]] += 1
    return dict(errors)


def _row(number: int, alone: LevelReport, among: LevelReport) -> tuple[str, ...]:
    without, attacked = (
        ", ".join(percentile(level.chunk_latency_ms, name) for name in names)
        for level, names in ((alone, ("p50", "p98")), (among, ("p50", "p98", "max")))
    )
    ratio = ", ".join(f"{share:.2f}" for share in shares([alone], [among])) or "–"
    compared, differ = alone.compared + among.compared, alone.mismatched + among.mismatched
    return (str(number), without, attacked, ratio, str(compared), str(differ))


def _counted(counts: Mapping[int, int] | Mapping[str, int]) -> str:
    items = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in items) or "none"


async def _open_files(url: str) -> float | None:
    return (await scrape_at(url, time.perf_counter(), time.perf_counter)).values.get(FILES)
