"""Autoscaling with real replicas: the load doubles and falls, a loop starts and drains replicas by the chart's rule.

`python -m tutti_asr_lab.trials.scaling` starts replicas of `tutti serve` and HAProxy with the shipped file, and makes
calls whose number doubles twice. `tutti_asr_lab.simulation.autoscaling.Autoscaler`, which the simulation uses too,
decides. Checks the share of refused calls, and that no call is cut or changed. Writes `loadtest/results/scaling.json`,
`.md`, `.csv` and `.png`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from deploy.ray.backends import HAProxyError
from loadtest.program import EXIT_BAD, EXIT_OK, RESULTS, Folder, Seed, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import show, unmet
from loadtest.reports.environment import describe
from tutti_asr_lab.trials.calls import Call, Plan, recordings, schedule
from tutti_asr_lab.trials.proxies import PROXIES, Proxy
from tutti_asr_lab.trials.replicas import environment
from tutti_asr_lab.trials.scaled_replicas import PLACES, PREFIX, ScaledReplicas
from tutti_asr_lab.trials.scenarios.scaling import Played, Row, Scaling, concluded, ideal, write
from tutti_asr_lab.trials.streams import Audio, Outcome, play_plain, play_resumable, reference_texts

CHEAP = {"TUTTI_FRONT_ENDS": "0", "TUTTI_DECODER": "greedy", "OMP_NUM_THREADS": "1"}
"""One process and a cheap decoder, since the replicas share the machine."""

TEMPLATE = "    server-template replica- 16 replica:8080\n"
EMPTY = f"    server-template {PREFIX} 1-{PLACES} 127.0.0.1:1 disabled\n"
"""Places without replicas, for the loop to fill, instead of those that DNS fills."""


def haproxy() -> Proxy:
    """Return HAProxy with the shipped file and empty places."""

    def emptied(text: str, _: Sequence[int]) -> str:
        if text.count(TEMPLATE) != 1:
            raise ValueError(f"{TEMPLATE.strip()!r} must occur exactly once")
        return text.replace(TEMPLATE, EMPTY)

    return replace(PROXIES["haproxy"], in_front_of=emptied)


async def make_calls(url: str, calls: Sequence[Call], played: Sequence[Audio]) -> list[tuple[bool, Outcome]]:
    """Make each call at its time; returns the outcomes, with whether the call could resume."""
    began_s = asyncio.get_running_loop().time()

    async def one(call: Call) -> tuple[bool, Outcome]:
        await asyncio.sleep(began_s + call.at_s - asyncio.get_running_loop().time())
        play = play_resumable if call.resumable else play_plain
        return call.resumable, await play(url, played[call.audio])

    return await asyncio.gather(*(one(call) for call in calls))


async def scaled(plan: Plan, command: str, progress: Callable[[str], None]) -> tuple[Scaling, list[Row]]:
    """Run a plan. Raises: LoadTestError, HAProxyError."""
    played, settings, over = recordings(plan), plan.settings, asyncio.Event()
    options = ["--threads", "1", "--max-streams", str(plan.channels), "--drain-timeout-s", f"{settings.drain_s:g}"]
    with haproxy().running([]) as proxy:
        control = f"127.0.0.1:{proxy.ports.control}"
        replicas = ScaledReplicas(settings, control, options, environment() | CHEAP, progress)
        async with replicas.running(ideal(plan, plan.profile.at_s[1])):
            progress(f"{len(played)} recordings without load …")
            texts = await reference_texts(proxy.url, played)
            loop = asyncio.create_task(replicas.follow(over))
            calls = schedule(plan, [audio.duration_s for audio in played])
            progress(f"{len(calls)} calls in {plan.profile.seconds:.0f} s …")
            work = asyncio.create_task(make_calls(proxy.url, calls, played))
            await asyncio.wait({loop, work}, return_when=asyncio.FIRST_COMPLETED)
            if loop.done():  # by an error
                work.cancel()
                await loop
            outcomes = await work
            over.set()
            await loop
    return concluded(plan, command, Played(outcomes, texts, replicas.record), describe(plan.seed))


def run(plan: Plan, folder: Path, command: str, console: Console) -> int:
    """Run, print, write; returns the exit code. Raises: LoadTestError, HAProxyError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found, rows = runner.run(scaled(plan, command, lambda line: console.print(line, highlight=False)))
    show(found.bars, console)
    for problem in (*found.resumable.problems, *found.plain.problems):
        console.print(problem, highlight=False, markup=False)
    pages.show_written(found, write(found, rows, folder))
    return EXIT_BAD if unmet(found.bars) else EXIT_OK


def main(
    *,
    channels: Annotated[int, typer.Option(help="Channels of a replica.")] = 12,
    calls: Annotated[int, typer.Option(help="Open calls at the beginning and at the end.")] = 6,
    doublings: Annotated[int, typer.Option(help="How many times the calls double.")] = 2,
    rise_s: Annotated[float, typer.Option(help="Seconds of each doubling; 120 in a cluster.")] = 40.0,
    hold_s: Annotated[float, typer.Option(help="Seconds before and after each doubling.")] = 20.0,
    call_s: Annotated[float, typer.Option(help="Mean length of a call, seconds.")] = 10.0,
    plain: Annotated[float, typer.Option(help="Share of calls that cannot resume.")] = 0.25,
    most: Annotated[int, typer.Option(help="Most replicas; 1: without scaling.")] = 3,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Scale real replicas with a load that doubles and falls; check refusals, transcripts and numbers of replicas."""

    def work(command: str) -> int:
        plan = Plan(channels, calls, doublings, rise_s, hold_s, call_s, plain, most=most, seed=seed)
        return run(plan, folder, command, Console(stderr=True))

    carry_out("tutti_asr_lab.trials.scaling", work, HAProxyError)


if __name__ == "__main__":
    typer.run(main)
