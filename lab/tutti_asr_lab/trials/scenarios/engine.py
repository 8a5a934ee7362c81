"""Loss of the engine under load: its process is killed, or replaced, again and again while streams are live.

No connection may close, no text may differ from the same recording without load, and answers may be late by a bounded
time. `--restart` asks for peaceful replacement instead of `kill -9`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Annotated

import typer

from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.reports.criteria import Criterion
from loadtest.served import ALL_IN, post, served_process
from tutti_asr_lab.processes import Process, left, tree
from tutti_asr_lab.trials.figures import StreamFigures, figures
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_during, reference_texts
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, compared_line, measure, run_async

HOST = "engine_host"
KILLED_S, RESTARTED_S = 1.5, 0.5  # bars on the latest answer of all
RESUMABLE_S = 30.0  # length of a resumable stream
STREAMS_IN_ALL = 12  # different resumable ones: each is first played without load
LEFT_AFTER_S = 10.0  # after the server's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Streams, and how often the engine is lost."""

    streams: Annotated[int, typer.Option(help="Plain live streams.")] = 100
    resumable: Annotated[int, typer.Option(help="Resumable live streams.", min=1)] = 50
    every_s: Annotated[float, typer.Option(help="Seconds between two losses.")] = 10.0
    seconds: Annotated[float, typer.Option(help="Seconds measured.")] = 300.0
    front_ends: Annotated[int, typer.Option(min=1, help="Front ends of the server.")] = 1
    stream_s: Annotated[float, typer.Option(help="Mean length of a plain stream, seconds.")] = 20.0
    restart: Annotated[bool, typer.Option("--restart", help="Replace the engine by request instead.")] = False

    @property
    def result(self) -> str:
        """Name of the result files."""
        return "engine_restart" if self.restart else "engine_kill"


@dataclass(slots=True)
class Losses:
    """Kills or replaces the engine on a schedule, and plays resumable streams meanwhile."""

    plan: Plan
    url: str
    supervisor: int
    audios: list[Audio]
    count: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    async def run(self, schedule: Schedule) -> None:
        """Cause losses until canceled at the end of the level; the first one in the middle of a period."""
        playing = play_during(self.url, self.audios, self.plan.resumable, schedule, self.outcomes)
        await asyncio.gather(playing, self._lose_regularly(schedule))

    async def _lose_regularly(self, schedule: Schedule) -> None:
        due_s = schedule.from_s + self.plan.every_s / 2
        while due_s < schedule.end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await asyncio.to_thread(self._lose)
            self.count += 1
            due_s += self.plan.every_s

    def _lose(self) -> None:
        if self.plan.restart:
            post(int(self.url.rpartition(":")[2]), "/admin/engine/restart")
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(serving_host(tree(self.supervisor)).pid, signal.SIGKILL)


def serving_host(processes: list[Process]) -> Process:
    """Return the engine host that serves: the one that was started first. Raises: ValueError if there is none."""
    return min((process for process in processes if process.name == HOST), key=lambda each: int(each.began))


def play(plan: Plan) -> TrialReport:
    """Lose the engine regularly under load; exit status 1 if a stream notices more than a pause."""
    options = (*ALL_IN, "--admin-local", "--front-ends", str(plan.front_ends), *plan.serve_options)
    played = audios(min(STREAMS_IN_ALL, plan.resumable), RESUMABLE_S, plan.seed)
    with served_process(options) as (url, pid):
        texts = run_async(reference_texts(url, played))
        losses = Losses(plan, url, pid, played)
        settings = LoadSettings(
            url, (plan.streams,), plan.seconds, stream_s=plan.stream_s, seed=plan.seed, period_s=plan.every_s
        )
        [level] = measure(settings, losses.run).document.levels
        processes = tree(pid)
    remain = tuple(each.name for each in left(processes, LEFT_AFTER_S))
    resumable = figures(losses.outcomes, texts)
    late = [minute.chunk_latency_ms for minute in level.minutes]
    latest_s = tuple(round(each.max / 1_000, 3) for each in late if each is not None)
    bars = judge(level, latest_s, resumable, bar_s=RESTARTED_S if plan.restart else KILLED_S)
    return TrialReport(
        title="Loss of the engine under load",
        bars=(*bars, Criterion("processes left", 0, len(remain))),
        lines=(
            f"{losses.count} losses; {compared_line(level)}",
            resumable.line("Resumable"),
            f"Latest answer of each period between two losses, s: {', '.join(f'{s:.2f}' for s in latest_s)}.",
        ),
        figures={"losses": losses.count, "latest_s": latest_s, "resumable": resumable, "left_over": remain},
        levels=(level,),
    )


def judge(
    level: LevelReport, latest_s: tuple[float, ...], resumable: StreamFigures, *, bar_s: float
) -> list[Criterion]:
    """Return the criteria: nothing is lost or differs, and answers are late by at most `bar_s`."""
    return [
        Criterion("connections that failed or were closed", 0, level.failed + resumable.interrupted),
        Criterion("transcripts that differ", 0, level.mismatched + resumable.finished - resumable.equal),
        Criterion("resumable streams that did not finish", 0, resumable.streams - resumable.finished),
        Criterion("steps without an answer", 0, level.unanswered),
        Criterion("transcripts compared, if below 1", 0, float(not level.compared)),
        Criterion("latest answer of all", bar_s, max(latest_s, default=None), "s"),
    ]
