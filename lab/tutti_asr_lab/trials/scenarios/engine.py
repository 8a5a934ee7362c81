"""Loss of the engine under load: its process is killed, or replaced, again and again while streams are live.

`python -m tutti_asr_lab.trials.failover.engine --every-s 10 --seconds 300` starts a server with front ends, plays plain
and resumable streams in real time, and kills the engine host. No connection may close, no text may differ from the same
recording without load, and answers may be late by a bounded time. `--restart` asks for peaceful replacement instead.
Writes `loadtest/results/engine_kill.json` or `engine_restart.json`, and `.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import measure
from loadtest.processes import Process, left, tree
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from loadtest.served import ALL_IN, post, served_process
from tutti_asr_lab.trials.figures import StreamFigures, figures
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_resumable

HOST = "engine_host"
KILLED_S, RESTARTED_S = 1.5, 0.5  # bars on the latest answer of all
RESUMABLE_S = 30.0  # length of a resumable stream
STREAMS_IN_ALL = 12  # different resumable ones: each is first played without load
LEFT_AFTER_S = 10.0  # after the server's end


class EngineLoss(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    losses: int
    latest_s: tuple[float, ...]  # the latest answer of each period between two losses
    bars: tuple[Criterion, ...]
    level: LevelReport
    resumable: StreamFigures
    left_over: tuple[str, ...]
    environment: Environment


@dataclass(slots=True)
class Losses:
    """Kills or replaces the engine on a schedule, and plays resumable streams meanwhile."""

    url: str
    supervisor: int
    every_s: float
    restart: bool
    resumable: int
    seed: int
    count: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    async def run(self, schedule: Schedule) -> None:
        """Cause losses until canceled at the end of the level; the first one in the middle of a period."""
        played = audios(min(STREAMS_IN_ALL, self.resumable), RESUMABLE_S, self.seed) if self.resumable else []
        for audio in played:
            self.texts[audio.name] = (await play_resumable(self.url, audio, realtime=False)).text
        async with asyncio.TaskGroup() as group:
            for _, audio in zip(range(self.resumable), cycle(played), strict=False):
                group.create_task(self._play(audio, schedule))
            group.create_task(self._lose_regularly(schedule))

    async def _lose_regularly(self, schedule: Schedule) -> None:
        due_s = schedule.from_s + self.every_s / 2
        while due_s < schedule.end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await asyncio.to_thread(self._lose)
            self.count += 1
            due_s += self.every_s

    async def _play(self, audio: Audio, schedule: Schedule) -> None:
        while time.perf_counter() < schedule.end_s - audio.duration_s:
            self.outcomes.append(await play_resumable(self.url, audio))

    def _lose(self) -> None:
        if self.restart:
            post(int(self.url.rpartition(":")[2]), "/admin/engine/restart")
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(serving_host(tree(self.supervisor)).pid, signal.SIGKILL)


def serving_host(processes: list[Process]) -> Process:
    """Return the engine host that serves: the one that was started first. Raises: ValueError if there is none."""
    return min((each for each in processes if each.name == HOST), key=lambda each: int(each.began))


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


def main(
    *,
    streams: Annotated[int, typer.Option(help="Plain live streams.")] = 100,
    resumable: Annotated[int, typer.Option(help="Resumable live streams.")] = 50,
    every_s: Annotated[float, typer.Option(help="Seconds between two losses.")] = 10.0,
    seconds: Annotated[float, typer.Option(help="Seconds measured.")] = 300.0,
    front_ends: Annotated[int, typer.Option(min=1, help="Front ends of the server.")] = 1,
    stream_s: Annotated[float, typer.Option(help="Mean length of a plain stream, seconds.")] = 20.0,
    restart: Annotated[bool, typer.Option("--restart", help="Replace the engine by request instead.")] = False,
    serve_option: ServeOptions = None,
    seed: Annotated[int, typer.Option(help="Random seed for start times and recordings.")] = 1,
    folder: Folder = RESULTS,
) -> None:
    """Lose the engine regularly under load; exit status 1 if a stream notices more than a pause."""

    def work(command: str) -> int:
        options = (*ALL_IN, "--admin-local", "--front-ends", str(front_ends), *(serve_option or ()))
        settings = LoadSettings("", (streams,), seconds, stream_s=stream_s, seed=seed, period_s=every_s)
        console = Console(stderr=True)
        with served_process(options) as (url, pid):
            losses = Losses(url, pid, every_s, restart, resumable, seed)
            result = measure(replace(settings, url=url), progress=console.print, alongside=losses.run)
            processes = tree(pid)
        remain = tuple(each.name for each in left(processes, LEFT_AFTER_S))
        [level] = result.document.levels
        print_remarks(level, console)
        of_resumable = figures(losses.outcomes, losses.texts)
        late = [minute.chunk_latency_ms for minute in level.minutes]
        latest_s = tuple(round(each.max / 1_000, 3) for each in late if each is not None)
        bars = judge(level, latest_s, of_resumable, bar_s=RESTARTED_S if restart else KILLED_S)
        bars.append(Criterion("processes left", 0, len(remain)))
        found = EngineLoss(
            command, losses.count, latest_s, tuple(bars), level, of_resumable, remain, result.document.environment
        )
        return conclude(found, bars, page(found), folder, "engine_restart" if restart else "engine_kill")

    carry_out("tutti_asr_lab.trials.failover.engine", work)


def page(found: EngineLoss) -> str:
    """Return the Markdown page."""
    latest = ", ".join(f"{seconds:.2f}" for seconds in found.latest_s)
    lines = [
        "# Loss of the engine under load",
        "",
        f"`{found.command}`",
        "",
        f"{found.losses} losses, {found.level.compared} transcripts of plain streams compared.",
        "",
        *table(found.bars),
        "",
        f"Latest answer of each period between two losses, seconds: {latest}.",
        "",
        *place_lines(found.environment),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
