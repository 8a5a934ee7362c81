"""Failover: live streams through a real proxy while a replica is killed or hangs, or all are restarted in turn.

Starts replicas and the shipped proxy, plays streams in real time, injects the fault, and compares the transcripts with
a run without faults. `--fault rolling --previous DIRECTORY` is an upgrade: replicas start from the checkout of an
earlier version, and each restart starts this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import typer

from loadtest.errors import BadSettings
from loadtest.reports.criteria import Criterion
from loadtest.served import ROOT
from tutti_asr_lab.trials.figures import StreamFigures, caught_up_times, figures, resume_times, since
from tutti_asr_lab.trials.proxies import PROXIES, SHIPPED_REPLICAS
from tutti_asr_lab.trials.replicas import CHEAP, Replica, replicas
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_plain, play_resumable, reference_texts
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, latency_line, run_async, say

DIFFERENT_AUDIOS = 12
"""Number of distinct audios; each is first played without a fault, which takes time."""

SPREAD_S = 2.0
"""Streams start within this time: real conversations do not begin together, and a handshake takes milliseconds."""

NOTICED_WITHIN_S = 3.0
"""Time between two restarts for the proxy to detect the restarted replica."""

SHARE_OF_DRAIN = 0.6
"""Length of a short plain stream as a share of the drain timeout, so that it ends within the drain."""

RESTARTED = 1012
"""Close code "service restart" (RFC 6455, IANA), sent by a drain."""


class Fault(StrEnum):
    """Injected fault."""

    KILL = "kill"
    HANG = "hang"
    ROLLING = "rolling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Proxy, fault, and streams."""

    proxy: Annotated[str, typer.Option(help="Proxy: haproxy, nginx or envoy.")] = "haproxy"
    fault: Annotated[
        Fault, typer.Option(help="kill: SIGKILL of one replica; hang: SIGSTOP of one; rolling: restart of all in turn.")
    ]
    replicas: Annotated[int, typer.Option(help="Replicas.", min=2, max=SHIPPED_REPLICAS)] = SHIPPED_REPLICAS
    streams: Annotated[int, typer.Option(help="Live resumable streams.", min=1)] = 60
    stream_s: Annotated[float, typer.Option(help="Length of a stream, seconds.")] = 30.0
    fault_after_s: Annotated[float, typer.Option(help="Seconds of streaming before the fault.")] = 10.0
    drain_timeout_s: Annotated[float, typer.Option(help="Drain timeout of the replicas, seconds.", min=2.0)] = 5.0
    plain: Annotated[int, typer.Option(help="Clients that cannot resume, of each length, with --fault rolling.")] = 6
    previous: Annotated[
        Path | None, typer.Option(help="Checkout of an earlier version, which --fault rolling replaces by this one.")
    ] = None

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.proxy not in PROXIES:
            raise BadSettings(f"--proxy {self.proxy}: must be one of {', '.join(PROXIES)}")
        if not SPREAD_S < self.fault_after_s < self.stream_s:
            raise BadSettings(f"--fault-after-s {self.fault_after_s:g}: must be above {SPREAD_S:g}, below --stream-s")
        if self.previous is not None and self.fault is not Fault.ROLLING:
            raise BadSettings(f"--previous {self.previous}: requires --fault rolling")

    @property
    def result(self) -> str:
        """Name of the result files."""
        return f"failover_{self.proxy}_{self.fault}"


@dataclass(slots=True)
class Run:
    """Run of one fault under load, and its outcomes."""

    url: str
    plan: Plan
    servers: list[Replica]
    resumable: list[Outcome] = field(default_factory=list)
    short: list[Outcome] = field(default_factory=list)
    long: list[Outcome] = field(default_factory=list)
    fault_at: float = 0.0
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self) -> Mapping[str, str]:
        """Play without, then with the fault; returns each audio's text. Raises: LoadTestError."""
        plan, rolling = self.plan, self.plan.fault is Fault.ROLLING
        count = min(DIFFERENT_AUDIOS, plan.streams)
        long = audios(count, plan.stream_s, plan.seed)
        short = audios(count, plan.drain_timeout_s * SHARE_OF_DRAIN, plan.seed)
        short = [Audio(f"short {audio.name}", audio.pcm) for audio in short] if rolling else []
        say(f"{len(long) + len(short)} recordings without a fault …")
        texts = await reference_texts(self.url, [*long, *short])
        work: list[Coroutine[None, None, None]] = [
            self._resumable(audio, number * SPREAD_S / plan.streams)
            for number, audio in enumerate(islice(cycle(long), plan.streams))
        ]
        if rolling:
            work += [self._short(audio) for audio in islice(cycle(short), plan.plain)]
            work += [self._long(audio) for audio in islice(cycle(long), plan.plain)]
        await asyncio.gather(*work, self._make_fault())
        return texts

    async def _resumable(self, audio: Audio, delay_s: float) -> None:
        """Play consecutive streams until the fault is over, at least one."""
        await asyncio.sleep(delay_s)
        while True:
            self.resumable.append(await play_resumable(self.url, audio))
            if self._over.is_set():
                return

    async def _short(self, audio: Audio) -> None:
        while not self._over.is_set():
            self.short.append(await play_plain(self.url, audio))

    async def _long(self, audio: Audio) -> None:
        self.long.append(await play_plain(self.url, audio))

    async def _make_fault(self) -> None:
        await asyncio.sleep(self.plan.fault_after_s)
        self.fault_at = asyncio.get_running_loop().time()
        say(f"{self.plan.fault} …")
        match self.plan.fault:
            case Fault.KILL:
                self.servers[0].kill()
            case Fault.HANG:
                self.servers[0].hang()
            case Fault.ROLLING:
                for server in self.servers:
                    code = await server.restart(self.plan.drain_timeout_s)
                    say(f"restarted; the old process exited with {code}")
                    await asyncio.sleep(NOTICED_WITHIN_S)
        self._over.set()


def play(plan: Plan) -> TrialReport:
    """Inject a fault under live streams; check that nothing is lost, and measure the time to resume."""
    return run_async(failover(plan))


async def failover(plan: Plan) -> TrialReport:
    """Run a plan. Raises: LoadTestError."""
    # Options that every version has.
    options = ["--threads", "1", "--drain-timeout-s", str(plan.drain_timeout_s), *plan.serve_options]
    async with replicas(plan.replicas, options, CHEAP, plan.previous or ROOT) as servers:
        with PROXIES[plan.proxy].running([server.port for server in servers]) as proxy:
            run = Run(proxy.url, plan, servers)
            texts = await run.play()
    kinds = {
        name: figures(outcomes, texts)
        for name, outcomes in (("Resumable", run.resumable), ("Short", run.short), ("Long", run.long))
        if outcomes
    }
    resume, caught_up = resume_times(run.resumable).spread(), caught_up_times(run.resumable).spread()
    single = plan.fault is not Fault.ROLLING  # a rolling restart has several faults
    since_fault = since(run.resumable, run.fault_at).spread() if single else None
    return TrialReport(
        title=f"Failover: {plan.proxy}, {plan.fault}",
        intro=f"Live streams through a real proxy. {plan.replicas} replicas, drain {plan.drain_timeout_s:g} s.",
        bars=tuple(judge(kinds["Resumable"], kinds.get("Short"), same_version=plan.previous is None)),
        lines=(
            *(kind.line(name) for name, kind in kinds.items()),
            *latency_line("Loss to resumed", resume),
            *latency_line("Loss to all audio sent", caught_up),
            *latency_line("Fault to resumed", since_fault),
        ),
        figures={**kinds, "resume_ms": resume, "caught_up_ms": caught_up, "since_fault_ms": since_fault},
        problems=kinds["Resumable"].problems,
    )


def judge(resumable: StreamFigures, short: StreamFigures | None, *, same_version: bool = True) -> list[Criterion]:
    """Return the criteria: resumable streams lose nothing; plain ones shorter than the drain are not interrupted.

    Texts are compared only with `same_version`: another version may word the same audio differently.
    """
    unequal = Criterion("transcripts that differ from a run without faults", 0, resumable.finished - resumable.equal)
    bars = [
        Criterion("resumable streams that did not finish", 0, resumable.streams - resumable.finished),
        *([unequal] if same_version else ()),
        Criterion("audio lost", 0, resumable.lost_s, "s"),
        Criterion("faults without an interrupted stream", 0, int(not resumable.interrupted)),
    ]
    if short is not None:
        bars.append(
            Criterion("plain streams shorter than the drain closed with 1012", 0, short.closes.get(RESTARTED, 0))
        )
        bars.append(
            Criterion("plain streams shorter than the drain that did not finish", 0, short.streams - short.finished)
        )
    return bars
