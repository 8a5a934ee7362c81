"""Failover test: live streams through a real proxy while a replica is killed or hangs, or all are restarted in turn.

`python -m tutti_asr_lab.trials.failover --proxy haproxy --fault kill` starts replicas and the shipped proxy, plays
streams in real time, injects the fault, and compares the transcripts with a run without faults. Writes
`loadtest/results/failover.json`, `.md` and `.png`. `--fault rolling --previous DIRECTORY` is an upgrade: replicas start
from the checkout of an earlier version, and each restart starts this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from loadtest.errors import BadSettings
from loadtest.program import EXIT_BAD, EXIT_OK, RESULTS, Folder, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import show, unmet
from loadtest.reports.environment import describe
from loadtest.served import ROOT
from tutti_asr_lab.trials.figures import (
    NAME,
    FaultRun,
    caught_up_times,
    draw,
    figures,
    judge,
    markdown,
    merged,
    resume_times,
    since,
)
from tutti_asr_lab.trials.proxies import PROXIES, SHIPPED_REPLICAS
from tutti_asr_lab.trials.replicas import Replica, replicas
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_plain, play_resumable, reference_texts

DIFFERENT_AUDIOS = 12
"""Number of distinct audios; each is first played without a fault, which takes time."""

SPREAD_S = 2.0
"""Streams start within this time: real conversations do not begin together, and a handshake takes milliseconds."""

NOTICED_WITHIN_S = 3.0
"""Time between two restarts for the proxy to detect the restarted replica."""

SHARE_OF_DRAIN = 0.6
"""Length of a short plain stream as a share of the drain timeout, so that it ends within the drain."""


CHEAP = {"TUTTI_FRONT_ENDS": "0", "TUTTI_DECODER": "greedy"}
"""One process and a cheap decoder, since the replicas share the machine. Variables: 0.1.0 lacks the options."""


class Fault(StrEnum):
    """Injected fault."""

    KILL = "kill"
    HANG = "hang"
    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run."""

    proxy: str = "haproxy"
    fault: Fault = Fault.KILL
    replicas: int = SHIPPED_REPLICAS
    streams: int = 60
    stream_s: float = 30.0
    fault_after_s: float = 10.0  # from the start of the first stream
    drain_timeout_s: float = 5.0
    plain: int = 6  # concurrent short plain streams, and total of long plain ones, while replicas are restarted
    seed: int = 1
    previous: Path | None = None  # checkout of the version that the replicas run before --fault rolling

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.proxy not in PROXIES:
            raise BadSettings(f"--proxy {self.proxy}: must be one of {', '.join(PROXIES)}")
        if not 2 <= self.replicas <= SHIPPED_REPLICAS:
            raise BadSettings(f"--replicas {self.replicas}: must be 2 to {SHIPPED_REPLICAS}, as in the proxies' files")
        if not SPREAD_S < self.fault_after_s < self.stream_s:
            raise BadSettings(f"--fault-after-s {self.fault_after_s:g}: must be above {SPREAD_S:g}, below --stream-s")
        if self.fault is Fault.ROLLING and self.drain_timeout_s * SHARE_OF_DRAIN < 1.0:
            raise BadSettings(f"--drain-timeout-s {self.drain_timeout_s:g}: too short for --fault rolling")
        if self.previous is not None and self.fault is not Fault.ROLLING:
            raise BadSettings(f"--previous {self.previous}: requires --fault rolling")

    @property
    def serve_options(self) -> list[str]:
        """Options of each replica, those that every version has."""
        return ["--threads", "1", "--drain-timeout-s", str(self.drain_timeout_s)]


@dataclass(slots=True)
class Played:
    """Outcomes of a run."""

    resumable: list[Outcome] = field(default_factory=list)
    short: list[Outcome] = field(default_factory=list)
    long: list[Outcome] = field(default_factory=list)
    fault_at: float = 0.0


class Run:
    """Run of one fault under load."""

    def __init__(self, url: str, plan: Plan, servers: list[Replica], progress: Callable[[str], None]) -> None:
        self._url = url
        self._plan = plan
        self._servers = servers
        self._progress = progress
        self._over = asyncio.Event()
        self._played = Played()

    async def play(self) -> tuple[Played, Mapping[str, str]]:
        """Play without, then with the fault. Returns: outcomes, and each audio's text. Raises: LoadTestError."""
        plan = self._plan
        long = audios(min(DIFFERENT_AUDIOS, plan.streams), plan.stream_s, plan.seed)
        short = audios(min(DIFFERENT_AUDIOS, plan.streams), plan.drain_timeout_s * SHARE_OF_DRAIN, plan.seed)
        short = [Audio(f"short {audio.name}", audio.pcm) for audio in short]
        rolling = plan.fault is Fault.ROLLING
        played = [*long, *(short if rolling else ())]
        self._progress(f"{len(played)} recordings without a fault …")
        references = await reference_texts(self._url, played)
        work: list[Coroutine[None, None, None]] = [
            self._resumable(audio, number * SPREAD_S / plan.streams)
            for number, audio in zip(range(plan.streams), cycle(long), strict=False)
        ]
        if rolling:
            work += [self._short(audio) for _, audio in zip(range(plan.plain), cycle(short), strict=False)]
            work += [self._long(audio) for _, audio in zip(range(plan.plain), cycle(long), strict=False)]
        async with asyncio.TaskGroup() as group:
            for stream in work:
                group.create_task(stream)
            group.create_task(self._make_fault())
        return self._played, references

    async def _resumable(self, audio: Audio, delay_s: float) -> None:
        """Play consecutive streams until the fault is over, at least one."""
        await asyncio.sleep(delay_s)
        while True:
            self._played.resumable.append(await play_resumable(self._url, audio))
            if self._over.is_set():
                return

    async def _short(self, audio: Audio) -> None:
        while not self._over.is_set():
            self._played.short.append(await play_plain(self._url, audio))

    async def _long(self, audio: Audio) -> None:
        self._played.long.append(await play_plain(self._url, audio))

    async def _make_fault(self) -> None:
        await asyncio.sleep(self._plan.fault_after_s)
        self._played.fault_at = asyncio.get_running_loop().time()
        self._progress(f"{self._plan.fault} …")
        match self._plan.fault:
            case Fault.KILL:
                self._servers[0].kill()
            case Fault.HANG:
                self._servers[0].hang()
            case Fault.ROLLING:
                for server in self._servers:
                    code = await server.restart(self._plan.drain_timeout_s)
                    self._progress(f"restarted; the old process exited with {code}")
                    await asyncio.sleep(NOTICED_WITHIN_S)
        self._over.set()


async def failover(plan: Plan, command: str, progress: Callable[[str], None]) -> FaultRun:
    """Run a plan. Raises: LoadTestError."""
    async with replicas(plan.replicas, plan.serve_options, CHEAP, plan.previous or ROOT) as servers:
        with PROXIES[plan.proxy].running([server.port for server in servers]) as proxy:
            played, references = await Run(proxy.url, plan, servers, progress).play()
    resumable = figures(played.resumable, references)
    short = figures(played.short, references) if played.short else None
    long = figures(played.long, references) if played.long else None
    resume, since_fault = resume_times(played.resumable), since(played.resumable, played.fault_at)
    rolling = plan.fault is Fault.ROLLING
    return FaultRun(
        proxy=plan.proxy,
        fault=plan.fault,
        command=command,
        replicas=plan.replicas,
        drain_timeout_s=plan.drain_timeout_s,
        bars=tuple(judge(resumable, short, same_version=plan.previous is None)),
        resumable=resumable,
        short=short,
        long=long,
        resume_ms=resume.spread(),
        caught_up_ms=caught_up_times(played.resumable).spread(),
        since_fault_ms=None if rolling else since_fault.spread(),  # a rolling restart has several faults
        resume_cdf=resume.cdf(),
        since_fault_cdf=[] if rolling else since_fault.cdf(),
        environment=describe(plan.seed),
    )


def run(plan: Plan, folder: Path, command: str, console: Console) -> int:
    """Run, print, write; returns the exit code. Raises: LoadTestError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(failover(plan, command, lambda line: console.print(line, highlight=False)))
    show(found.bars, console)
    for problem in found.resumable.problems:
        console.print(problem, highlight=False, markup=False)
    document = merged(folder / f"{NAME}.json", found)
    paths = [*pages.write(document, markdown(document), folder, NAME), folder / f"{NAME}.png"]
    draw(document, paths[-1])
    pages.show_written(found, paths)
    return EXIT_BAD if unmet(found.bars) else EXIT_OK


def main(
    *,
    proxy: Annotated[str, typer.Option(help="Proxy: haproxy, nginx or envoy.")] = "haproxy",
    fault: Annotated[
        Fault, typer.Option(help="kill: SIGKILL of one replica; hang: SIGSTOP of one; rolling: restart of all in turn.")
    ],
    replicas: Annotated[int, typer.Option(help="Number of replicas.")] = SHIPPED_REPLICAS,
    streams: Annotated[int, typer.Option(help="Live resumable streams.")] = 60,
    stream_s: Annotated[float, typer.Option(help="Length of a stream, seconds.")] = 30.0,
    fault_after_s: Annotated[float, typer.Option(help="Seconds of streaming before the fault.")] = 10.0,
    drain_timeout_s: Annotated[float, typer.Option(help="Drain timeout of the replicas, seconds.")] = 5.0,
    plain: Annotated[int, typer.Option(help="Clients that cannot resume, of each length, with --fault rolling.")] = 6,
    seed: Annotated[int, typer.Option(help="Random seed for the recordings.")] = 1,
    previous: Annotated[
        Path | None, typer.Option(help="Checkout of an earlier version, which --fault rolling replaces by this one.")
    ] = None,
    folder: Folder = RESULTS,
) -> None:
    """Inject a fault under live streams; check that nothing is lost, and measure the time to resume."""

    def work(command: str) -> int:
        plan = Plan(proxy, fault, replicas, streams, stream_s, fault_after_s, drain_timeout_s, plain, seed, previous)
        return run(plan, folder, command, Console(stderr=True))

    carry_out("tutti_asr_lab.trials.failover", work)


if __name__ == "__main__":
    typer.run(main)
