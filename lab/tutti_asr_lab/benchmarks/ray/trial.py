"""Trial of the Ray fleet on this machine: two nodes, a real HAProxy, and live streams; a node is lost.

`python -m tutti_asr_lab.benchmarks.ray.trial` writes `loadtest/results/ray.json` and `.md`. Owns the order of work and
the bars.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import msgspec
import ray
import typer
import uvloop
from ray.cluster_utils import Cluster
from rich.console import Console

from deploy.ray.controller import Controller, Plan
from deploy.ray.scaling import Rule
from loadtest.errors import LoadTestError
from loadtest.generator.latencies import Spread
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure
from loadtest.program import RESULTS, Folder, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment, describe
from tutti_asr_lab.benchmarks.ray.edge import Edge, edge
from tutti_asr_lab.trials.replicas import environment, replicas
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_resumable

NAME = "ray"
STORE_BYTES = 80 * 2**20  # minimum; Ray's object store is not used
WITHIN_S = 240.0  # a replica may take minutes to start on a busy machine
LOOKS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Trial:
    """Size of the trial. A replica accepts `room` streams; `streams` need two replicas at the share of the rule."""

    streams: int = 12
    room: int = 12
    stream_s: float = 45.0
    compared: int = 25  # streams for the comparison of latency; 0: none
    compared_s: float = 20.0
    seed: int = 1

    @property
    def serve_options(self) -> tuple[str, ...]:
        """Options of each replica."""
        room = max(self.room, self.compared)
        return ("--decoder", "greedy", "--threads", "1", "--drain-timeout-s", "5", "--max-streams", str(room))

    @property
    def rule(self) -> Rule:
        """Scaling rule: two replicas for the streams, one without streams."""
        return Rule(1, 2, share=0.7 * self.streams / max(self.room, self.compared), down_after_s=5.0)


class Found(msgspec.Struct, frozen=True):
    """The result document. Latencies are of chunks, in ms, through HAProxy in both cases."""

    command: str
    bars: tuple[Criterion, ...]
    scaled_up_s: float
    replaced_s: float
    scaled_down_s: float
    with_ray: Spread | None
    without_ray: Spread | None
    problems: tuple[str, ...]
    environment: Environment


class Fleet:
    """The controller in a separate thread."""

    def __init__(self, plan: Plan) -> None:
        self._controller = Controller(plan)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._controller.run, args=(self._stop.is_set,), name="controller")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)

    @property
    def ready(self) -> int:
        """Number of ready replicas."""
        return sum(backend.state == "ready" for backend in self._controller.fleet.backends.values())

    async def wait(self, holds: Callable[[], bool]) -> float:
        """Wait for a condition and return the seconds. Raises: LoadTestError."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not holds():
            if loop.time() - begin_s > WITHIN_S:
                raise LoadTestError(f"the fleet still has {self.ready} ready replicas after {WITHIN_S:g} s")
            await asyncio.sleep(LOOKS_EVERY_S)
        return round(loop.time() - begin_s, 1)


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Cluster, Any]]:
    """Start a local cluster: a head with room for one replica and a spare, and a node that can be lost."""
    node = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **node})
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


async def lose_a_node(
    url: str, fleet: Fleet, cluster: Cluster, node: Any, trial: Trial
) -> tuple[list[float], list[str]]:
    """Scale up, lose a node, scale down; returns the seconds of each, and the problems."""
    loop = asyncio.get_running_loop()
    wanted = audios(min(4, trial.streams), trial.stream_s, trial.seed)
    texts = {audio.name: (await play_resumable(url, audio, realtime=False)).text for audio in wanted}
    streams: list[asyncio.Task[Outcome]] = []

    def play() -> None:
        tasks = [_play(url, wanted[number % len(wanted)], number) for number in range(trial.streams)]
        streams.extend(loop.create_task(task) for task in tasks)

    def grown() -> bool:
        """Whether there are two replicas; plays new streams if a slow machine needs longer than they last."""
        if fleet.ready < 2 and all(stream.done() for stream in streams):
            play()
        return fleet.ready == 2

    up_s = await fleet.wait(grown)
    play()
    await asyncio.sleep(5.0)  # until both replicas have streams
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
    await fleet.wait(lambda: fleet.ready == 1)
    replaced_s = await fleet.wait(grown)
    outcomes = await asyncio.gather(*streams)
    down_s = await fleet.wait(lambda: fleet.ready == 1)
    return [up_s, replaced_s, down_s], [*_problems(outcomes, texts), *_uninterrupted(outcomes)]


async def _play(url: str, audio: Audio, number: int) -> Outcome:
    await asyncio.sleep(0.1 * number)
    return await play_resumable(url, audio)


def _problems(outcomes: list[Outcome], texts: dict[str, str]) -> list[str]:
    bad = [one for one in outcomes if not one.finished or one.lost_s or one.text != texts[one.audio.name]]
    return [f"{one.audio.name}: {one.problem or 'different text'}, {one.lost_s:.2f} s lost" for one in bad]


def _uninterrupted(outcomes: list[Outcome]) -> list[str]:
    return [] if any(one.lost_at for one in outcomes) else ["no stream was interrupted: the lost node had none"]


def _latency(url: str, trial: Trial) -> LevelReport:
    settings = LoadSettings(url=url, streams=(trial.compared,), seconds=trial.compared_s, stream_s=15, seed=trial.seed)
    return measure(settings, progress=lambda _: None).document.levels[0]


async def _without_ray(trial: Trial) -> LevelReport:
    async with replicas(1, trial.serve_options) as servers:
        with edge() as proxy:
            proxy.place(1, f"127.0.0.1:{servers[0].port}")
            return await asyncio.to_thread(_latency, proxy.url, trial)


def _plan(trial: Trial, proxy: Edge) -> Plan:
    """Return the plan of one replica."""
    return Plan(
        proxy.control,
        Rule(1, 1),
        host="127.0.0.1",
        cpus=1,
        serve_options=trial.serve_options,
        environment=environment(),
        period_s=0.5,
    )


def run(trial: Trial, command: str, progress: Callable[[str], None]) -> Found:
    """Run the trial. Raises: LoadTestError, ClientError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        without, with_ray = None, None
        if trial.compared:
            progress("latency without Ray …")
            without = runner.run(_without_ray(trial))
        progress("two nodes …")
        with two_nodes() as (cluster, node), edge() as proxy:
            plan = _plan(trial, proxy)
            if trial.compared:
                with Fleet(plan) as fleet:
                    runner.run(fleet.wait(lambda: fleet.ready == 1))
                    progress("latency with Ray …")
                    with_ray = _latency(proxy.url, trial)
            with Fleet(replace(plan, rule=trial.rule)) as fleet:
                runner.run(fleet.wait(lambda: fleet.ready == 1))
                progress("scaling up, losing a node, scaling down …")
                seconds, problems = runner.run(lose_a_node(proxy.url, fleet, cluster, node, trial))
    bars = [Criterion("streams that failed, lost audio or have a different text", 0, len(problems))]
    bars += [
        Criterion("streams that failed in the comparison", 0, level.failed) for level in (without, with_ray) if level
    ]
    return Found(
        command,
        tuple(bars),
        scaled_up_s=seconds[0],
        replaced_s=seconds[1],
        scaled_down_s=seconds[2],
        with_ray=with_ray.chunk_latency_ms if with_ray else None,
        without_ray=without.chunk_latency_ms if without else None,
        problems=tuple(problems),
        environment=describe(trial.seed),
    )


def markdown(found: Found, trial: Trial) -> str:
    """Return the page."""
    lines = ["# Replicas placed by Ray", "", f"`{found.command}`", "", *table(found.bars), ""]
    both = 2 * trial.streams
    lines += [
        (
            f"Two nodes of one machine. One replica, then {trial.streams} streams: a second one was ready after "
            f"{found.scaled_up_s:g} s. With {both} streams on both, the node of the second was killed; a new replica "
            f"was ready {found.replaced_s:g} s after the loss was detected. After the streams had ended, the fleet was "
            f"one replica after {found.scaled_down_s:g} s. Every stream was played to its end and its text compared."
        )
    ]
    lines += ["", f"Chunk latency of {trial.compared} streams through HAProxy, ms:", ""]
    compared = (("replica placed by Ray", found.with_ray), ("replica without Ray", found.without_ray))
    rows = [(name, f"{spread.p50:.1f}", f"{spread.p98:.1f}") for name, spread in compared if spread is not None]
    return "\n".join([*lines, *pages.table(("", "p50", "p98"), rows), "", *pages.place_lines(found.environment), ""])


def main(
    *,
    streams: Annotated[
        int, typer.Option(help="Live streams; the same number is added when there are two replicas.")
    ] = 12,
    folder: Folder = RESULTS,
) -> None:
    """Scale from one replica to two and back, kill a node in between; compare latency with and without Ray."""

    def work(command: str) -> int:
        console, trial = Console(stderr=True), Trial(streams=streams)
        found = run(trial, command, lambda line: console.print(line, highlight=False))
        for problem in found.problems:
            console.print(problem, highlight=False, markup=False)
        return conclude(found, found.bars, markdown(found, trial), folder, NAME)

    carry_out("tutti_asr_lab.benchmarks.ray.trial", work)


if __name__ == "__main__":
    typer.run(main)
