"""A client of the Wyoming protocol that writes its bytes itself, so that tests choose where they are cut."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any, Self

from server.audio.pcm import PCM
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.spelling import CONFIG

Event = dict[str, Any]
FORM = {"rate": CONFIG.sample_rate, "width": 2, "channels": 1}
AUDIO_START, AUDIO_STOP = "audio-start", "audio-stop"


def packed(name: str, payload: bytes = b"", /, **data: Any) -> bytes:
    """Return an event as the package `wyoming` writes it."""
    body = json.dumps(data).encode() if data else b""
    line: Event = {"type": name, "version": "1.10.2"}
    line |= ({"data_length": len(body)} if body else {}) | ({"payload_length": len(payload)} if payload else {})
    return json.dumps(line).encode() + b"\n" + body + payload


def chunk(audio: PCM | bytes, **form: int) -> bytes:
    """Return an `audio-chunk`; 16-bit mono at the model's rate unless `form` says otherwise."""
    payload = audio if isinstance(audio, bytes) else audio.tobytes()
    return packed("audio-chunk", payload, **(FORM | form), timestamp=None)


def utterance(audio: PCM, *, language: str = "en", size: int = 1_024) -> bytes:
    """Return all events of a voice command, its audio in chunks of `size` samples."""
    chunks = [chunk(audio[start : start + size]) for start in range(0, len(audio), size)]
    first = packed("transcribe", language=language) + packed(AUDIO_START, **FORM)
    return b"".join([first, *chunks, packed(AUDIO_STOP, timestamp=None)])


class WyomingClient:
    """One connection, closed at the end of a `with` block."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def send(self, events: bytes, pieces: Iterable[int] = ()) -> None:
        """Send bytes, in segments of these sizes first."""
        at = 0
        for size in pieces:
            self._socket.sendall(events[at : at + size])
            at += size
        self._socket.sendall(events[at:])

    def send_until_refused(self, events: bytes, timeout_s: float) -> int:
        """Send events again and again, without reading; return the bytes sent once none is taken for this time."""
        self._socket.settimeout(timeout_s)
        sent = 0
        try:
            while True:
                sent += self._socket.send(events)
        except TimeoutError:
            return sent
        finally:
            self._socket.settimeout(WAIT_S)

    def read(self) -> Event | None:
        """Return the next event, its data in it; None at the end of the connection."""
        line = self._reader.readline()
        if not line:
            return None
        head = json.loads(line)
        data = json.loads(self._reader.read(head["data_length"])) if head.get("data_length") else {}
        return {"type": head["type"], **data}

    def until(self, *names: str) -> list[Event]:
        """Return the events up to the first one with such a name."""
        events: list[Event] = []
        while not events or events[-1]["type"] not in names:
            event = self.read()
            assert event is not None, f"the connection ended after {events}"
            events.append(event)
        return events

    def transcript(self) -> str:
        """Return the text of the next transcript, which its chunks agree with."""
        *_, first = self.until("transcript-start")
        assert first["type"] == "transcript-start"
        *chunks, whole, last = self.until("transcript-stop")
        assert {one["type"] for one in chunks} <= {"transcript-chunk"}
        assert (whole["type"], last["type"]) == ("transcript", "transcript-stop")
        assert "".join(one["text"] for one in chunks) == whole["text"]
        return str(whole["text"])

    def error(self) -> Event:
        """Return the error that ends the connection."""
        *_, error = self.until("error")
        assert self.read() is None, "the connection ends after an error"
        return error
