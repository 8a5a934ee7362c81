"""Loss of a front end or of the supervisor of a server with several processes, and the balance of connections.

`--loss front-end` plays plain and resumable streams in real time over two front ends and kills one; `--loss supervisor`
kills the supervisor under plain streams; `--loss balance` counts the connections of four front ends before and after
one is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from typing import Annotated

import typer

from loadtest.errors import ServerNotReady
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.server_metrics import SLOTS, metrics_at
from loadtest.reports.criteria import Criterion
from loadtest.served import get, is_ready, served_process
from tutti_asr_lab.planning.loopback import SILENT, open_stream
from tutti_asr_lab.processes import Process, connections, left, tree
from tutti_asr_lab.trials.figures import StreamFigures, figures, since
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_during, play_plain, reference_texts
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, latency_line, measure, run_async

FRONT_END = "front_end"
SPARE = 8  # slots above the number of streams, since an ending stream and its successor overlap
RESUMABLE_S = 20.0  # length of a resumable stream
AUDIOS = 12  # different ones: each is first played without a loss
LOOK_S = 0.1
REPORTED_S = 0.6  # in which each front end has reported its connections to the supervisor
GIVE_UP_S = 60.0
TAKEN_UP_S, SLOTS_S, SERVES_S, SLOWER = 0.6, 1.0, 3.0, 1.5
"""Bars: resumable streams connected again (p98), slots free, another front end serves; p98 by that before the kill."""
DRAIN_S, CLOSED_WITHIN_S, LEFT_AFTER_S = 5.0, 3.0, 10.0
"""Drain timeout of a server that loses its supervisor; bars on closed streams and on what is left, in addition."""
UNEVEN, UNEVEN_AFTER = 2, 0.1
"""Bars on the difference between two front ends: connections; after a loss, as a share of the mean."""


class Loss(StrEnum):
    """What is lost, or only counted."""

    FRONT_END = "front-end"
    SUPERVISOR = "supervisor"
    BALANCE = "balance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """What is lost, and under which streams."""

    loss: Annotated[Loss, typer.Option(help="What is killed; balance: connections are counted around a loss.")]
    front_ends: Annotated[int, typer.Option(min=0, help="Front ends. 0: 2, for balance 4.")] = 0
    streams: Annotated[int, typer.Option(min=0, help="Plain streams. 0: 60, for balance 200.")] = 0
    resumable: Annotated[int, typer.Option(help="Resumable streams, with front-end.", min=1)] = 60
    seconds: Annotated[float, typer.Option(help="Seconds measured, with front-end; the kill is in the middle.")] = 60.0
    stream_s: Annotated[float, typer.Option(help="Mean length of a plain stream, seconds, with front-end.")] = 15.0

    @property
    def result(self) -> str:
        """Name of the result files."""
        return "front_ends_balance" if self.loss is Loss.BALANCE else f"{self.loss.replace('-', '_')}_kill"

    @property
    def sizes(self) -> tuple[int, int]:
        """Front ends and plain streams."""
        front_ends, streams = (4, 200) if self.loss is Loss.BALANCE else (2, 60)
        return self.front_ends or front_ends, self.streams or streams


@dataclass(frozen=True, slots=True)
class Server:
    """A running server with front ends."""

    url: str
    pid: int

    @property
    def port(self) -> int:
        """Port of HTTP and WebSockets."""
        return int(self.url.rpartition(":")[2])

    def front_ends(self) -> list[Process]:
        """Front ends, the oldest first."""
        return sorted((each for each in tree(self.pid) if each.name == FRONT_END), key=lambda each: int(each.began))

    def connections(self) -> tuple[int, ...]:
        """Return the number of connections of each front end."""
        return tuple(connections(front_end.pid) for front_end in self.front_ends())

    def counters(self) -> dict[str, float]:
        """Return all counters of `/metrics` by series."""
        lines = [line for line in get(self.port, "/metrics").decode().splitlines() if not line.startswith("#")]
        values = {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}
        return {series: value for series, value in values.items() if series.partition("{")[0].endswith("_total")}

    def slots(self) -> float:
        """Return the number of slots in use."""
        return metrics_at(self.port).get(SLOTS, 0.0)


@contextlib.contextmanager
def _server(front_ends: int, options: Sequence[str]) -> Iterator[Server]:
    with served_process(("--front-ends", str(front_ends), "--log-level", "error", *options)) as (url, pid):
        yield Server(url, pid)


@dataclass(slots=True)
class KilledFrontEnd:
    """Kills a front end in the middle of a level, and observes what follows."""

    server: Server
    audios: Sequence[Audio]
    resumable: int
    killed_at: float = 0.0  # of the event loop
    connections: int = 0  # that the killed front end had
    slots_free_s: float | None = None
    serves_s: float | None = None
    before: dict[str, float] = field(default_factory=dict)
    fell: list[str] = field(default_factory=list)  # counters that fell
    outcomes: list[Outcome] = field(default_factory=list)

    async def run(self, schedule: Schedule) -> None:
        """Play resumable streams and kill, until canceled at the end of the level."""
        playing = play_during(self.server.url, self.audios, self.resumable, schedule, self.outcomes)
        await asyncio.gather(playing, self._kill(schedule))

    async def _kill(self, schedule: Schedule) -> None:
        await asyncio.sleep((schedule.from_s + schedule.end_s) / 2 - time.perf_counter())
        victim, *others = self.server.front_ends()
        self.before = await asyncio.to_thread(self.server.counters)
        self.connections = connections(victim.pid)
        self.killed_at = asyncio.get_running_loop().time()
        os.kill(victim.pid, signal.SIGKILL)
        known = {each.pid for each in (victim, *others)}
        self.slots_free_s = await self._time_until(lambda: self.server.slots() <= sum(self.server.connections()))
        self.serves_s = await self._time_until(
            lambda: any(
                connections(front_end.pid) for front_end in self.server.front_ends() if front_end.pid not in known
            )
        )
        after = await asyncio.to_thread(self.server.counters)
        self.fell = [series for series, value in self.before.items() if after.get(series, 0.0) < value]

    async def _time_until(self, holds: Callable[[], bool]) -> float | None:
        """Return the seconds from the kill until this holds; None if it does not."""
        loop = asyncio.get_running_loop()
        while loop.time() - self.killed_at < GIVE_UP_S:
            with contextlib.suppress(OSError):  # the supervisor gave a request to the killed one
                if await asyncio.to_thread(holds):
                    return round(loop.time() - self.killed_at, 3)
            await asyncio.sleep(LOOK_S)
        return None


def judge(level: LevelReport, resumable: StreamFigures, kill: KilledFrontEnd) -> list[Criterion]:
    """Return the criteria of a killed front end."""
    lost = level.failed + resumable.interrupted
    opening = sum(count for problem, count in level.problems.items() if "in the handshake" in problem)
    p98 = [minute.chunk_latency_ms.p98 for minute in level.minutes if minute.chunk_latency_ms is not None]
    taken_up = since(kill.outcomes, kill.killed_at).spread()
    return [
        Criterion("kills that no stream noticed", 0, float(not lost)),
        Criterion(
            "streams of other front ends that were closed or failed", 0, max(0, lost - kill.connections - opening)
        ),
        Criterion("resumable streams that did not finish", 0, resumable.streams - resumable.finished),
        Criterion("transcripts that differ", 0, level.mismatched + resumable.finished - resumable.equal),
        Criterion("transcripts compared, if below 1", 0, float(not level.compared)),
        Criterion(
            "resumable streams connected again, p98",
            TAKEN_UP_S,
            None if taken_up is None else taken_up.p98 / 1_000,
            "s",
        ),
        Criterion("slots of the killed front end free", SLOTS_S, kill.slots_free_s, "s"),
        Criterion("another front end has a stream", SERVES_S, kill.serves_s, "s"),
        Criterion("counters that fell", 0, len(kill.fell)),
        Criterion("p98 after the kill", SLOWER, round(p98[1] / p98[0], 2) if len(p98) == 2 else None, "times"),
    ]


def play(plan: Plan) -> TrialReport:
    """Kill a process of a server and judge what its clients notice; exit status 1 if a bar is missed."""
    match plan.loss:
        case Loss.FRONT_END:
            return lose_front_end(plan)
        case Loss.SUPERVISOR:
            return lose_supervisor(plan)
        case Loss.BALANCE:
            return balance(plan)


def lose_front_end(plan: Plan) -> TrialReport:
    """Kill a front end in the middle of a level. Raises: LoadTestError, ClientError."""
    front_ends, streams = plan.sizes
    played = audios(min(AUDIOS, plan.resumable), RESUMABLE_S, plan.seed)
    with _server(front_ends, ("--max-streams", str(streams + plan.resumable + SPARE), *plan.serve_options)) as server:
        texts = run_async(reference_texts(server.url, played))
        kill = KilledFrontEnd(server, played, plan.resumable)
        half_s = plan.seconds / 2
        settings = LoadSettings(
            server.url, (streams,), plan.seconds, stream_s=plan.stream_s, seed=plan.seed, period_s=half_s
        )
        [level] = measure(settings, kill.run).document.levels
    resumable = figures(kill.outcomes, texts)
    halves = zip(("Before the kill", "After the kill"), level.minutes, strict=False)
    return TrialReport(
        title="Loss of a front end",
        bars=tuple(judge(level, resumable, kill)),
        lines=(
            resumable.line("Resumable"),
            *(line for name, half in halves for line in latency_line(name, half.chunk_latency_ms)),
        ),
        figures={"resumable": resumable},
        levels=(level,),
    )


def lose_supervisor(plan: Plan) -> TrialReport:
    """Kill the supervisor under streams that would last longer than the drain. Raises: LoadTestError."""
    front_ends, streams = plan.sizes
    played = audios(min(AUDIOS, streams), 4 * DRAIN_S, plan.seed)
    with _server(front_ends, ("--drain-timeout-s", str(DRAIN_S), *plan.serve_options)) as server:
        processes = tree(server.pid)
        outcomes, closed_s = run_async(_without_supervisor(server, played, streams))
        remain = left([process for process in processes if process.pid != server.pid], LEFT_AFTER_S)
        listens = is_ready(server.port)
    silent = sum(not outcome.finished and 1006 in (outcome.closes or [1006]) for outcome in outcomes)
    return TrialReport(
        title="Loss of the supervisor",
        bars=(
            Criterion("streams cut without a close frame", 0, silent),
            Criterion("streams opened, if below 1", 0, float(not any(outcome.connected_at for outcome in outcomes))),
            Criterion("last stream closed", DRAIN_S + CLOSED_WITHIN_S, round(max(closed_s), 3), "s"),
            Criterion("processes left", 0, len(remain)),
            Criterion("ports that still answer", 0, int(listens)),
        ),
    )


async def _without_supervisor(
    server: Server, played: Sequence[Audio], streams: int
) -> tuple[list[Outcome], list[float]]:
    """Play, and kill the supervisor; return the outcomes, and the time from the kill to the end of each stream."""
    loop = asyncio.get_running_loop()
    ended_at: list[float] = []

    async def play(audio: Audio) -> Outcome:
        outcome = await play_plain(server.url, audio)
        ended_at.append(loop.time())
        return outcome

    playing = [loop.create_task(play(audio)) for audio in islice(cycle(played), streams)]
    await asyncio.sleep(DRAIN_S)
    killed_at = loop.time()
    os.kill(server.pid, signal.SIGKILL)
    outcomes = await asyncio.gather(*playing)
    return outcomes, [at - killed_at for at in ended_at]


def balance(plan: Plan) -> TrialReport:
    """Count the connections of each front end, before and after one is lost. Raises: LoadTestError, OSError."""
    front_ends, streams = plan.sizes
    slots = ("--max-streams", str(streams + SPARE), "--idle-timeout-s", str(2 * GIVE_UP_S))
    with _server(front_ends, (*slots, *plan.serve_options)) as server, contextlib.ExitStack() as stack:

        def opened(count: int) -> list[socket.socket]:
            return [stack.enter_context(open_stream(server.port, SILENT)) for _ in range(count)]

        held = opened(streams)
        at_first, known = server.connections(), server.front_ends()
        os.kill(known[0].pid, signal.SIGKILL)
        _await_another(server, known)
        alive = [each for each in held if not _closed(each)]
        alive += opened(streams - len(alive))
        for each in random.Random(plan.seed).sample(alive, streams // 2):
            each.close()
        _await_count(server, streams - streams // 2)
        opened(streams // 2)
        after = server.connections()
    share = round(UNEVEN_AFTER * streams / front_ends, 1)
    counts = {"at first": at_first, "after the loss": after}
    return TrialReport(
        title="Balance of connections",
        bars=(
            Criterion("difference between two front ends", UNEVEN, max(at_first) - min(at_first)),
            Criterion("front ends missing after the loss", 0, front_ends - len(after)),
            Criterion("difference after the loss, half of the streams changed", share, max(after) - min(after)),
        ),
        lines=tuple(
            f"Connections of each front end {when}: {', '.join(map(str, each))}." for when, each in counts.items()
        ),
        figures={"connections": counts},
    )


def _await_count(server: Server, count: int) -> None:
    """Wait until the front ends have seen that connections were closed. Raises: ServerNotReady."""
    end_s = time.monotonic() + GIVE_UP_S
    while sum(server.connections()) > count:
        if time.monotonic() > end_s:
            raise ServerNotReady(f"closed connections were still counted after {GIVE_UP_S:g} s")
        time.sleep(LOOK_S)
    time.sleep(REPORTED_S)


def _await_another(server: Server, known: Sequence[Process]) -> None:
    """Wait until a new front end gets connections. Raises: ServerNotReady."""
    pids, end_s = {each.pid for each in known}, time.monotonic() + GIVE_UP_S
    while time.monotonic() < end_s:
        # The supervisor may hand a connection to the killed one as it dies.
        with contextlib.suppress(ConnectionError), open_stream(server.port, SILENT):
            if any(connections(front_end.pid) for front_end in server.front_ends() if front_end.pid not in pids):
                return
        time.sleep(LOOK_S)
    raise ServerNotReady(f"no front end replaced the killed one within {GIVE_UP_S:g} s")


def _closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it sends nothing."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
