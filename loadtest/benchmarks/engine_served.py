"""Python overhead of an engine whose front ends are other processes, and the latency that its sockets add.

`python -m loadtest.benchmarks.engine_python --served` runs it. The engine runs in this process, whose other threads
sleep, so the processor time of the process is that of the model thread. One feeding process drives all sockets: a step
of each stream every 80 ms, evenly spread. Latency is from the time at which a step was due to be sent to its answer, so
it includes the delay of the feeder's own clock, which is reported too.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from batching.batcher import Policy
from batching.events import BatchDone
from batching.slot_model import SlotModel
from batching.wire.engine_server import EngineServer
from batching.wire.remote import RemoteConnection
from batching.wire.sockets import data_sockets

STEP_S = 0.08
TICK_S = 0.001
WARM_S = 1.0  # at the start, left out
MAX_QUEUED = 100

Report = dict[str, float]


class _Feed:
    """One socket of the feeding process and its streams."""

    def __init__(self, end: socket.socket, streams: int) -> None:
        self.connection = RemoteConnection()
        end.setblocking(True)
        while (hello := self.connection.hello) is None:
            self.connection.received(end.recv(1 << 16))
        end.setblocking(False)
        self.inputs: NDArray[Any] = np.zeros(hello.inputs.shape, hello.inputs.dtype)
        self.socket = end
        self.streams = [self.connection.open() for _ in range(streams)]
        self._unsent = memoryview(b"")

    def send(self) -> None:
        """Send what the socket takes."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent or self.connection.output_bytes:
                if not self._unsent:
                    self._unsent = memoryview(self.connection.take_output())
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def latencies_s(self) -> list[float]:
        """Take what has arrived; return the latency of each answer."""
        try:
            events = self.connection.received(self.socket.recv(1 << 18))
        except BlockingIOError:
            return []
        now = time.perf_counter()
        batches = [event for event in events if isinstance(event, BatchDone)]
        return [now - due_s for batch in batches for due_s in cast(tuple[float, ...], batch.tags)]


def _feed(ends: Sequence[socket.socket], streams: int, seconds: float, results: Connection) -> None:
    """Drive `streams` streams over the sockets for this time; send the latencies and the delays of the clock."""
    feeds = [_Feed(end, streams // len(ends)) for end in ends]
    order = [(feeds[n % len(feeds)], feeds[n % len(feeds)].streams[n // len(feeds)]) for n in range(streams)]
    began_s = time.perf_counter()
    latencies_s: list[float] = []
    delays_s: list[float] = []
    sent = answered = 0
    while (now := time.perf_counter()) < began_s + seconds:
        while (due_s := began_s + sent * STEP_S / len(order)) <= now:
            feed, stream = order[sent % len(order)]
            feed.connection.push(stream, feed.inputs, tag=due_s)
            delays_s.append(now - due_s)
            sent += 1
        for feed in feeds:
            feed.send()
        wait_s = max(0.0, now + TICK_S - time.perf_counter())
        ready, _, _ = select.select([feed.socket for feed in feeds], [], [], wait_s)
        for feed in feeds:
            if feed.socket in ready:
                found_s = feed.latencies_s()
                answered += len(found_s)
                if now > began_s + WARM_S:
                    latencies_s += found_s
    results.send((latencies_s, delays_s, sent, answered))
    results.recv()  # until the engine's time is read


def measure(model: SlotModel, *, streams: int, sockets: int, seconds: float) -> Report:
    """Feed a served engine; each socket gets the same number of streams.

    Returns: microseconds of processor time a row, rows a second, milliseconds of latency.
    """
    engine = EngineServer(model, policy=Policy.EAGER, max_queued=MAX_QUEUED, step_s=STEP_S)
    pairs = [data_sockets() for _ in range(sockets)]
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    feeder = context.Process(target=_feed, args=([front for front, _ in pairs], streams, seconds, theirs), daemon=True)
    feeder.start()
    theirs.close()  # so that the end of the feeder is seen
    for front, served in pairs:
        engine.attach(served)
        front.close()
    engine.start()
    began_s = time.process_time()
    try:
        latencies_s, delays_s, sent, answered = mine.recv()
    except EOFError:
        raise RuntimeError("the feeding process ended early: its error is above") from None
    took_s = time.process_time() - began_s
    mine.send(None)
    feeder.join()
    engine.stop(10.0)
    percentiles = statistics.quantiles(latencies_s, n=100)
    return {
        "us_per_row": 1e6 * took_s / answered,
        "rows_per_s": answered / seconds,
        "cores": took_s / seconds,
        "p50_ms": 1e3 * percentiles[49],
        "p98_ms": 1e3 * percentiles[97],
        "p99_ms": 1e3 * percentiles[98],
        "feeder_late_p98_ms": 1e3 * statistics.quantiles(delays_s, n=100)[97],
        "answered": answered / sent,
    }
