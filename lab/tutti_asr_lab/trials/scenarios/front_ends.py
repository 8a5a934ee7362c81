"""Loss of a front end or of the supervisor of a server with several processes, and the balance of connections.

`python -m tutti_asr_lab.trials.failover.front_ends --loss front-end` plays plain and resumable streams in real time
over two front ends and kills one; `--loss supervisor` kills the supervisor under plain streams; `--loss balance` counts
the connections of four front ends before and after one is killed. Writes `front_end_kill`, `supervisor_kill` or
`front_ends_balance`, as JSON and Markdown, into `loadtest/results`.
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
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.errors import ServerNotReady
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure
from loadtest.measurement.server_metrics import SLOTS, metrics_at
from loadtest.processes import Process, connections, left, tree
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment, describe
from loadtest.reports.pages import place_lines
from loadtest.served import get, is_ready, served_process
from tutti_asr_lab.planning.loopback import SILENT, open_stream
from tutti_asr_lab.trials.figures import StreamFigures, figures, since
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_plain, play_resumable

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


class ProcessLoss(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    loss: Loss
    bars: tuple[Criterion, ...]
    environment: Environment
    level: LevelReport | None = None
    resumable: StreamFigures | None = None
    connections: tuple[tuple[int, ...], ...] = ()
    """Of each front end, at the start and after the loss."""


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
        return tuple(connections(each.pid) for each in self.front_ends())

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
        async with asyncio.TaskGroup() as group:
            for _, audio in zip(range(self.resumable), cycle(self.audios), strict=False):
                group.create_task(self._play(audio, schedule))
            group.create_task(self._kill(schedule))

    async def _play(self, audio: Audio, schedule: Schedule) -> None:
        while time.perf_counter() < schedule.end_s - audio.duration_s:
            self.outcomes.append(await play_resumable(self.server.url, audio))

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
            lambda: any(connections(each.pid) for each in self.server.front_ends() if each.pid not in known)
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


async def _references(url: str, played: Sequence[Audio]) -> dict[str, str]:
    return {audio.name: (await play_resumable(url, audio, realtime=False)).text for audio in played}


def judge(level: LevelReport, resumable: StreamFigures, kill: KilledFrontEnd) -> list[Criterion]:
    """Return the criteria of a killed front end."""
    lost = level.failed + resumable.interrupted
    opening = sum(count for problem, count in level.problems.items() if "in the handshake" in problem)
    p98 = [each.chunk_latency_ms.p98 for each in level.minutes if each.chunk_latency_ms is not None]
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


def lose_front_end(
    command: str, front_ends: int, load: LoadSettings, resumable: int, options: Sequence[str]
) -> ProcessLoss:
    """Kill a front end in the middle of a level. Raises: LoadTestError, ClientError."""
    slots = ("--max-streams", str(load.streams[0] + resumable + SPARE))
    played = audios(min(AUDIOS, resumable), RESUMABLE_S, load.seed) if resumable else []
    with _server(front_ends, (*slots, *options)) as server:
        texts = asyncio.run(_references(server.url, played))
        kill = KilledFrontEnd(server, played, resumable)
        settings = replace(load, url=server.url, period_s=load.seconds / 2)
        result = measure(settings, progress=Console(stderr=True).print, alongside=kill.run)
    [level] = result.document.levels
    found = figures(kill.outcomes, texts)
    bars = tuple(judge(level, found, kill))
    return ProcessLoss(command, Loss.FRONT_END, bars, result.document.environment, level, found)


def lose_supervisor(command: str, front_ends: int, streams: int, seed: int, options: Sequence[str]) -> ProcessLoss:
    """Kill the supervisor under streams that would last longer than the drain. Raises: LoadTestError."""
    played = audios(min(AUDIOS, streams), 4 * DRAIN_S, seed)
    with _server(front_ends, ("--drain-timeout-s", str(DRAIN_S), *options)) as server:
        processes = tree(server.pid)
        outcomes, closed_s = asyncio.run(_without_supervisor(server, played, streams))
        remain = left([each for each in processes if each.pid != server.pid], LEFT_AFTER_S)
        listens = is_ready(server.port)
    silent = sum(not outcome.finished and 1006 in (outcome.closes or [1006]) for outcome in outcomes)
    bars = (
        Criterion("streams cut without a close frame", 0, silent),
        Criterion("streams opened, if below 1", 0, float(not any(outcome.connected_at for outcome in outcomes))),
        Criterion("last stream closed", DRAIN_S + CLOSED_WITHIN_S, round(max(closed_s), 3), "s"),
        Criterion("processes left", 0, len(remain)),
        Criterion("ports that still answer", 0, int(listens)),
    )
    return ProcessLoss(command, Loss.SUPERVISOR, bars, describe(seed))


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

    playing = [loop.create_task(play(audio)) for _, audio in zip(range(streams), cycle(played), strict=False)]
    await asyncio.sleep(DRAIN_S)
    killed_at = loop.time()
    os.kill(server.pid, signal.SIGKILL)
    outcomes = await asyncio.gather(*playing)
    return outcomes, [at - killed_at for at in ended_at]


def balance(command: str, front_ends: int, streams: int, seed: int, options: Sequence[str]) -> ProcessLoss:
    """Count the connections of each front end, before and after one is lost. Raises: LoadTestError, OSError."""
    slots = ("--max-streams", str(streams + SPARE), "--idle-timeout-s", str(2 * GIVE_UP_S))
    with _server(front_ends, (*slots, *options)) as server, contextlib.ExitStack() as stack:

        def opened(count: int) -> list[socket.socket]:
            return [stack.enter_context(open_stream(server.port, SILENT)) for _ in range(count)]

        held = opened(streams)
        at_first, known = server.connections(), server.front_ends()
        os.kill(known[0].pid, signal.SIGKILL)
        _await_another(server, known)
        alive = [each for each in held if not _closed(each)]
        alive += opened(streams - len(alive))
        for each in random.Random(seed).sample(alive, streams // 2):
            each.close()
        _await_count(server, streams - streams // 2)
        opened(streams // 2)
        after = server.connections()
    share = round(UNEVEN_AFTER * streams / front_ends, 1)
    bars = (
        Criterion("difference between two front ends", UNEVEN, max(at_first) - min(at_first)),
        Criterion("front ends missing after the loss", 0, front_ends - len(after)),
        Criterion("difference after the loss, half of the streams changed", share, max(after) - min(after)),
    )
    return ProcessLoss(command, Loss.BALANCE, bars, describe(seed), connections=(at_first, after))


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
            if any(connections(each.pid) for each in server.front_ends() if each.pid not in pids):
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


def page(found: ProcessLoss) -> str:
    """Return the Markdown page."""
    titles = {Loss.FRONT_END: "Loss of a front end", Loss.SUPERVISOR: "Loss of the supervisor"}
    lines = [
        f"# {titles.get(found.loss, 'Balance of connections')}",
        "",
        f"`{found.command}`",
        "",
        *table(found.bars),
        "",
    ]
    for name, counts in zip(("at first", "after the loss"), found.connections, strict=False):
        lines.append(f"Connections of each front end {name}: {', '.join(map(str, counts))}.  ")
    if found.level is not None:
        late = [each.chunk_latency_ms for each in found.level.minutes]
        lines.append(f"p98 before and after the kill: {', '.join(f'{each.p98:.1f}' for each in late if each)} ms.  ")
    return "\n".join([*lines, "", *place_lines(found.environment)]) + "\n"


def main(
    *,
    loss: Annotated[Loss, typer.Option(help="What is killed; balance: connections are counted around a loss.")],
    front_ends: Annotated[int | None, typer.Option(min=1, help="Front ends. Default: 2, for balance 4.")] = None,
    streams: Annotated[int | None, typer.Option(help="Plain streams. Default: 60, for balance 200.")] = None,
    resumable: Annotated[int, typer.Option(help="Resumable streams, with front-end.")] = 60,
    seconds: Annotated[float, typer.Option(help="Seconds measured, with front-end; the kill is in the middle.")] = 60.0,
    stream_s: Annotated[float, typer.Option(help="Mean length of a plain stream, seconds, with front-end.")] = 15.0,
    serve_option: ServeOptions = None,
    seed: Annotated[int, typer.Option(help="Random seed for start times and recordings.")] = 1,
    folder: Folder = RESULTS,
) -> None:
    """Kill a process of a server and judge what its clients notice; exit status 1 if a bar is missed."""

    def work(command: str) -> int:
        balanced, options = loss is Loss.BALANCE, tuple(serve_option or ())
        count, many = front_ends or (4 if balanced else 2), streams or (200 if balanced else 60)
        if balanced:
            found = balance(command, count, many, seed, options)
        elif loss is Loss.SUPERVISOR:
            found = lose_supervisor(command, count, many, seed, options)
        else:
            load = LoadSettings("", (many,), seconds, stream_s=stream_s, seed=seed)
            found = lose_front_end(command, count, load, resumable, options)
        name = "front_ends_balance" if balanced else f"{loss.replace('-', '_')}_kill"
        return conclude(found, found.bars, page(found), folder, name)

    carry_out("tutti_asr_lab.trials.failover.front_ends", work, OSError)


if __name__ == "__main__":
    typer.run(main)
