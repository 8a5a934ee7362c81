"""Client with little overhead for a server on this machine: measures the server's CPU time and round trips.

Uses plain sockets, one selector and prepared frames, so that the client's time does not hide the server's. The costs
are fitted by `tutti_asr_lab.planning.calibrate`.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from loadtest.generator.frames import BINARY, CLOSE, TEXT, FrameReader, masked
from loadtest.measurement.server_metrics import metrics_at
from tutti_asr_lab.processes import cpu_s

HOST = "127.0.0.1"
KEY = "dHV0dGktY2FsaWJyYXRlIQ=="  # any 16 bytes, in base64
TIMEOUT_S = 10.0
MASK = bytes(4)  # leaves the payload unchanged
SILENT = "encoding=linear16&sample_rate=16000&finals=fast"  # second passes are measured by themselves
ANSWERED = SILENT + "&interim_results=true&step_results=true&latency=true"
COUNTERS = ("tutti_batches_total", "tutti_batch_rows_total", "tutti_decode_seconds_sum")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its results report it: rows, and seconds in the model, until its decoding began, and in decoding."""

    rows: int
    step_s: float
    handover_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """Counters of a server over a period of steady load."""

    loop_s: float
    """CPU time of its event loop's thread."""
    batches: float
    rows: float
    decode_s: float
    """Part of `loop_s` spent on decoding."""
    round_trips_s: tuple[float, ...] = ()
    """From sending a step to reading its result; empty if no results were requested."""
    steps: tuple[Batch, ...] = ()
    """The batches named in the results."""
    others_s: float = 0.0
    """CPU time of other programs on this machine."""
    all_s: float = 0.0
    """CPU time of all of the server's threads, without the reading of the counters."""

    def since(self, before: Window) -> Window:
        """Return the difference to earlier counters."""
        return Window(
            self.loop_s - before.loop_s,
            self.batches - before.batches,
            self.rows - before.rows,
            self.decode_s - before.decode_s,
            others_s=max(0.0, self.others_s - before.others_s),
        )


def load(port: int, pid: int, audio: Sequence[bytes], *, streams: int, seconds: float, answers: bool) -> Window:
    """Send the messages of `audio` on each stream in real time, for 1 s and then for the measured `seconds`.

    Streams begin at different positions of the audio. Raises: OSError, BadFrame.
    """
    query, places = ANSWERED if answers else SILENT, [stream * len(audio) // streams for stream in range(streams)]
    opened = [_Stream(open_stream(port, query), place) for place in places]
    try:
        message_s = len(audio[0]) / 2 / 16_000
        frames = [masked(BINARY, step, MASK) for step in audio]
        with selectors.DefaultSelector() as selector:
            for stream in opened:
                selector.register(stream.socket, selectors.EVENT_READ, stream)
            _run(selector, opened, frames, message_s, until_s=time.perf_counter() + 1.0)
            for stream in opened:
                stream.round_trips_s.clear()
                stream.steps.clear()
            before, began_s = _counts(port, pid), cpu_s(pid)
            _run(selector, opened, frames, message_s, until_s=time.perf_counter() + seconds)
            spent_s = cpu_s(pid) - began_s
            done = _counts(port, pid).since(before)
        round_trips_s = tuple(took_s for stream in opened for took_s in stream.round_trips_s)
        # The result of each row names its batch; batches of one size are distinguished by their times in microseconds.
        steps = {step for stream in opened for step in stream.steps}
        return replace(done, round_trips_s=round_trips_s, steps=tuple(steps), all_s=spent_s)
    finally:
        for stream in opened:
            stream.socket.close()


def short_streams(port: int, pid: int, audio: bytes, count: int) -> Window:
    """Run `count` consecutive streams of one step. Raises: OSError, BadFrame."""
    step, close = masked(BINARY, audio, MASK), masked(TEXT, b'{"type":"CloseStream"}', MASK)
    before = _counts(port, pid)
    for _ in range(count):
        with open_stream(port, ANSWERED) as connection:
            stream = _Stream(connection)
            connection.sendall(step + close)
            while not stream.closing:
                stream.read(time.perf_counter())
            connection.sendall(masked(CLOSE, b"", MASK))
    return _counts(port, pid).since(before)


class _Latency(msgspec.Struct):
    step_ms: float
    handover_ms: float
    decode_ms: float
    batch: int


class _TuttiFields(msgspec.Struct):
    latency: _Latency | None = None


class _Results(msgspec.Struct):
    tutti: _TuttiFields | None = None


@dataclass(slots=True, eq=False)
class _Stream:
    """One connection: times of sent steps, and received results."""

    socket: socket.socket
    place: int = 0  # position of the next message in the audio
    closing: bool = False  # the server has sent a close frame
    frames: FrameReader = field(default_factory=FrameReader)
    sent_s: deque[float] = field(default_factory=deque)
    round_trips_s: list[float] = field(default_factory=list)
    steps: set[Batch] = field(default_factory=set)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send the next step."""
        self.sent_s.append(time.perf_counter())
        self.socket.sendall(frames[self.place])
        self.place = (self.place + 1) % len(frames)

    def read(self, now: float) -> None:
        """Read received data; each `Results` belongs to the oldest step.

        Raises: ConnectionError if the server closed the connection.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed a stream during calibration")
        for opcode, payload in self.frames.feed(data):
            self.closing = self.closing or opcode == CLOSE
            if opcode == TEXT and self.sent_s and b'"Results"' in payload:
                self.round_trips_s.append(now - self.sent_s.popleft())
                fields = msgspec.json.decode(payload, type=_Results).tutti
                if fields is not None and (found := fields.latency) is not None:
                    times = (found.step_ms * 1e-3, found.handover_ms * 1e-3, found.decode_ms * 1e-3)
                    self.steps.add(Batch(found.batch, *times))


def _run(
    selector: selectors.BaseSelector,
    opened: list[_Stream],
    frames: Sequence[bytes],
    message_s: float,
    *,
    until_s: float,
) -> None:
    """Send and read until `until_s`; message n goes to stream n modulo the number of streams."""
    gap_s = message_s / len(opened)
    begin_s, number = time.perf_counter(), 0
    while (now := time.perf_counter()) < until_s:
        due_s = begin_s + number * gap_s
        if due_s <= now:
            opened[number % len(opened)].send(frames)
            number += 1
        for key, _ in selector.select(max(0.0, min(due_s, until_s) - time.perf_counter())):
            key.data.read(time.perf_counter())


def open_stream(port: int, query: str) -> socket.socket:
    """Return the socket of a new stream. Raises: OSError, ConnectionError if the server refuses it."""
    connection = socket.create_connection((HOST, port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(
        f"GET /v1/listen?{query} HTTP/1.1\r\nHost: {HOST}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: a frame may follow
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the server closed the connection during the handshake")
        head += byte
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"the server refused the handshake: {head.splitlines()[0].decode()}")
    return connection


def _counts(port: int, pid: int) -> Window:
    """Return counters since the server's start; its event loop is the main thread. Source: Linux, sched-stats.rst."""
    values = metrics_at(port)
    spent_ns = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[0])
    batches, rows, decode_s = (values.get(name, 0.0) for name in COUNTERS)
    return Window(spent_ns * 1e-9, batches, rows, decode_s, others_s=_others_s(pid))


def _others_s(pid: int) -> float:
    """Return the CPU time of all other programs since boot: neither this process nor `pid`. Source: Linux, proc(5)."""
    machine = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, soft_irq, steal = map(int, machine)
    server = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks = user + nice + system + irq + soft_irq + steal - int(server[11]) - int(server[12])
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
