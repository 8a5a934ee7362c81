"""Failover test: live streams through a real proxy while a replica is killed or hangs, or all are restarted in turn.

`python -m loadtest.failover --proxy haproxy --fault kill` starts replicas and the shipped proxy, plays the streams in
real time, makes the fault in the middle of their words and compares their transcripts with an undisturbed run.
Writes `loadtest/results/failover.json`, `.md` and `.png`. Owns the order of work.
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

from loadtest.errors import BadSettings, NoReference
from loadtest.failover.proxies import PROXIES, SHIPPED_REPLICAS
from loadtest.failover.replicas import Replica, replicas
from loadtest.failover.report import (
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
from loadtest.failover.streams import Audio, Outcome, audios, play_plain, play_resumable
from loadtest.program import EXIT_BAD, EXIT_OK, RESULTS, Folder, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import show, unmet
from loadtest.reports.environment import describe

DIFFERENT_AUDIOS = 12
"""Each is played undisturbed first, which takes time."""

SPREAD_S = 2.0
"""Streams start within it: a handshake costs a server some milliseconds, and conversations do not begin together."""

NOTICED_WITHIN_S = 3.0
"""Between two restarts: the proxy sees the replica that is back."""

SHARE_OF_DRAIN = 0.6
"""Of the drain's time that a short plain stream takes: it must fit, with its handshake and its last words."""


class Fault(StrEnum):
    """The fault of the replicas."""

    KILL = "kill"
    HANG = "hang"
    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    proxy: str = "haproxy"
    fault: Fault = Fault.KILL
    replicas: int = SHIPPED_REPLICAS
    streams: int = 60
    stream_s: float = 30.0
    fault_after_s: float = 10.0  # from the start of the first stream
    drain_timeout_s: float = 5.0
    plain: int = 6  # plain short streams at a time, and as many long ones in all, while replicas are restarted
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.proxy not in PROXIES:
            raise BadSettings(f"{self.proxy} is none of {', '.join(PROXIES)}")
        if not 2 <= self.replicas <= SHIPPED_REPLICAS:
            raise BadSettings(f"2 to {SHIPPED_REPLICAS} replicas, as in the proxies' files")
        if not SPREAD_S < self.fault_after_s < self.stream_s:
            raise BadSettings("the fault belongs into the middle of the streams")
        if self.fault is Fault.ROLLING and self.drain_timeout_s * SHARE_OF_DRAIN < 1.0:
            raise BadSettings("no stream is short beside this drain")

    @property
    def serve_options(self) -> list[str]:
        """Of each replica: they share the machine, so small compute and a decoder that costs little."""
        return ["--decoder", "greedy", "--threads", "1", "--drain-timeout-s", str(self.drain_timeout_s)]


@dataclass(slots=True)
class Played:
    """The outcomes of a run."""

    resumable: list[Outcome] = field(default_factory=list)
    short: list[Outcome] = field(default_factory=list)
    long: list[Outcome] = field(default_factory=list)
    fault_at: float = 0.0


class Run:
    """One fault under load."""

    def __init__(self, url: str, plan: Plan, servers: list[Replica], progress: Callable[[str], None]) -> None:
        self._url = url
        self._plan = plan
        self._servers = servers
        self._progress = progress
        self._over = asyncio.Event()
        self._played = Played()

    async def play(self) -> tuple[Played, Mapping[str, str]]:
        """Play undisturbed, then with the fault. Returns: outcomes, each audio's text. Raises: LoadTestError."""
        plan = self._plan
        long = audios(min(DIFFERENT_AUDIOS, plan.streams), plan.stream_s, plan.seed)
        short = audios(min(DIFFERENT_AUDIOS, plan.streams), plan.drain_timeout_s * SHARE_OF_DRAIN, plan.seed)
        short = [Audio(f"short {audio.name}", audio.pcm) for audio in short]
        rolling = plan.fault is Fault.ROLLING
        references = await self._references([*long, *(short if rolling else ())])
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

    async def _references(self, wanted: list[Audio]) -> dict[str, str]:
        """The text of each audio without a fault: one at a time, at full speed. Raises: NoReference."""
        self._progress(f"{len(wanted)} recordings undisturbed …")
        texts: dict[str, str] = {}
        for audio in wanted:
            outcome = await play_resumable(self._url, audio, realtime=False)
            if not outcome.finished or outcome.lost_at or outcome.lost_s or not outcome.text:
                raise NoReference(f"{audio.name} fails undisturbed: {outcome.problem or 'audio is not accounted for'}")
            texts[audio.name] = outcome.text
        return texts

    async def _resumable(self, audio: Audio, delay_s: float) -> None:
        """One stream after another until the fault is over, one at least."""
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
                    self._progress(f"restarted: the old one ended with {code}")
                    await asyncio.sleep(NOTICED_WITHIN_S)
        self._over.set()


async def failover(plan: Plan, command: str, progress: Callable[[str], None]) -> FaultRun:
    """Carry out a plan. Raises: LoadTestError."""
    async with replicas(plan.replicas, plan.serve_options) as servers:
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
        bars=tuple(judge(resumable, short)),
        resumable=resumable,
        short=short,
        long=long,
        resume_ms=resume.spread(),
        caught_up_ms=caught_up_times(played.resumable).spread(),
        since_fault_ms=None if rolling else since_fault.spread(),  # there are several faults in it
        resume_cdf=resume.cdf(),
        since_fault_cdf=[] if rolling else since_fault.cdf(),
        environment=describe(plan.seed),
    )


def run(plan: Plan, folder: Path, command: str, console: Console) -> int:
    """Carry out, print, write; returns the exit code. Raises: LoadTestError."""
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
    proxy: Annotated[str, typer.Option(help="haproxy, nginx or envoy.")] = "haproxy",
    fault: Annotated[Fault, typer.Option(help="kill -9 of one replica, SIGSTOP of one, or a restart of all in turn.")],
    replicas: Annotated[int, typer.Option(help="Server processes.")] = SHIPPED_REPLICAS,
    streams: Annotated[int, typer.Option(help="Live resumable streams.")] = 60,
    stream_s: Annotated[float, typer.Option(help="Seconds of a stream.")] = 30.0,
    fault_after_s: Annotated[float, typer.Option(help="Seconds of streaming before the fault.")] = 10.0,
    drain_timeout_s: Annotated[float, typer.Option(help="Of the replicas.")] = 5.0,
    plain: Annotated[int, typer.Option(help="Clients that cannot resume, for --fault rolling; of each length.")] = 6,
    seed: Annotated[int, typer.Option(help="Decides the recordings.")] = 1,
    folder: Folder = RESULTS,
) -> None:
    """Make a replica fail under live streams; see that nothing is lost, and how long it takes."""

    def work(command: str) -> int:
        plan = Plan(proxy, fault, replicas, streams, stream_s, fault_after_s, drain_timeout_s, plain, seed)
        return run(plan, folder, command, Console(stderr=True))

    carry_out("loadtest.failover", work)


if __name__ == "__main__":
    typer.run(main)
