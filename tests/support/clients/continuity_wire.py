"""Connects a `Continuity` and `FakeRecognition`s with a simulated network, and checks what the caller receives."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

import pytest

from tests.support.clients.fake_recognition import FakeRecognition, Frame, Shape, undisturbed
from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.continuity import Continuity
from tutti_asr_client.messages import ConfigureSuccess, ContextSuccess, Message, Results, decode

PLENTY = 2**20
Said = bytes | str


class Wire:
    """A client and a server with frames in flight between them; a cut loses these."""

    def __init__(self, shape: Shape, servers: Any, held_bytes: int = PLENTY, rewind_s: float = 0.0) -> None:
        transcripts = shape.channels if shape.multichannel else 1
        self.shape = shape
        self.stream = Continuity(
            AudioShape(shape.rate, shape.sample_bytes, shape.channels, transcripts), held_bytes, rewind_s
        )
        self.script: list[Said] = []
        self.received: list[Message] = []
        self.most_held = 0
        self.over = False
        self.servers: list[FakeRecognition] = []
        self._make_server = servers
        self._random = random.Random(5)
        self._connect()

    def _connect(self) -> None:
        self._up: deque[Said] = deque()
        self._down: deque[Frame] = deque()
        self.server: FakeRecognition = self._make_server(len(self.servers))
        self.servers.append(self.server)
        self.stream.connected()

    # Moves of the caller

    def say(self, size: int) -> None:
        pcm = self._random.randbytes(size)
        self.script.append(pcm)
        self.stream.add_audio(pcm)
        self.most_held = max(self.most_held, self.stream.send_log.held_bytes)

    def finalize(self, channel: int | None) -> None:
        self.script.append(json.dumps({"type": "Finalize"} | ({} if channel is None else {"channel": channel})))
        self.stream.control("Finalize", channel)

    def configure(self, term: str) -> None:
        self.script.append(json.dumps({"type": "Configure", "keyterms": [term]}))
        self.stream.control("Configure", keyterms=[term])

    def add_context(self, said: str) -> None:
        self.script.append(json.dumps({"type": "Context", "text": said}))
        self.stream.control("Context", text=said)

    def rewind(self, seconds: float) -> None:
        self.script.append(json.dumps({"type": "Rewind", "seconds": seconds}))
        self.stream.control("Rewind", seconds=seconds, keyterms=[])

    def close(self) -> None:
        self.script.append('{"type":"CloseStream"}')
        self.stream.close()

    # Moves of the network

    def send(self, count: int) -> None:
        for _ in range(count):
            if (frame := self.stream.next_frame()) is None:
                return
            self._up.append(frame)

    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self._up))):
            self._down.extend(self.server.hear(self._up.popleft()))

    def tell(self, count: int) -> None:
        for _ in range(min(count, len(self._down))):
            message = decode(json.dumps(self._down.popleft()))
            assert message is not None
            self.received += self.stream.receive(message)
        if self.server.closed and not self._down:
            self.over = True

    def cut(self) -> None:
        self.stream.lost()
        if self.stream.complete:
            self.over = True
        else:
            self._connect()

    def drain(self) -> None:
        """Drain the server: it sends a ticket, then the connection is cut; not without tickets or after CloseStream."""
        if self.stream.closing or not self.server.tickets:
            return
        self._down.extend(self.server.drain())
        self.tell(len(self._down))
        self.over = False
        self.cut()

    def finish(self) -> None:
        """Deliver all frames without a cut until the end."""
        for _ in range(100_000):
            if self.over:
                return
            self.send(3)
            self.arrive(3)
            self.tell(10)
        pytest.fail("the stream does not end")


def finals(messages: list[Message], channels: int) -> list[list[tuple[Any, ...]]]:
    """Return the finals of each channel as comparable rows."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(channels)]
    for m in messages:
        if isinstance(m, Results) and m.is_final and not m.correction:
            words = [(w.word, round(w.start, 3), round(w.end, 3)) for w in m.words]
            end = round(m.cursor_s, 3)
            found[m.channel_index[0]].append((round(m.start, 3), end, m.text, m.from_finalize, words))
    return found


def without_last_nothing(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Drop the empty final of the close: a cut after the last text may lose it."""
    return rows[:-1] if rows and rows[-1][0] == rows[-1][1] and not rows[-1][3] else rows


def check(wire: Wire) -> None:
    said = [decode(json.dumps(frame)) for frame in undisturbed(wire.shape, wire.script)]
    channels = wire.stream.shape.transcripts
    wanted = finals([m for m in said if m is not None], channels)
    got = finals(wire.received, channels)
    for mine, theirs in zip(got, wanted, strict=True):
        assert without_last_nothing(mine) == without_last_nothing(theirs)
    for channel in range(channels):
        reached = ended = 0.0
        for m in wire.received:
            if not isinstance(m, Results) or m.channel_index[0] != channel or m.correction:
                continue
            if m.is_final:
                ended = m.cursor_s
                reached = max(reached, ended)
            else:
                assert m.start == pytest.approx(ended), "an interim begins where the last final ended"
                assert m.cursor_s > reached, "an interim was delivered twice"
                reached = m.cursor_s
    asked = [json.loads(said)["type"] for said in wire.script if isinstance(said, str)]
    assert sum(isinstance(m, ConfigureSuccess) for m in wire.received) == asked.count("Configure")
    assert sum(isinstance(m, ContextSuccess) for m in wire.received) == asked.count("Context")
    assert sum(isinstance(m, Results) and m.correction for m in wire.received) == asked.count("Rewind") * channels
    duration_s = wire.stream.shape.seconds(sum(len(pcm) for pcm in wire.script if isinstance(pcm, bytes)))
    assert wire.stream.closing_metadata("r").duration == pytest.approx(duration_s, abs=2 / wire.shape.rate)


def play(wire: Wire, before: list[Any], after: list[Any]) -> None:
    for move, *given_ in before:
        getattr(wire, move)(*given_)
    wire.close()
    for move, *given_ in after:
        if wire.over:
            break
        getattr(wire, move)(*given_)
    wire.finish()
