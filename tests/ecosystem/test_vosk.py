"""`vosk` from PyPI, unmodified: its `Transcriber` works with this server as with a vosk-server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loadtest.served import free_port
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, audio, text
from tests.ecosystem.relay import Connection, Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess
from tests.support.needs import missing

try:
    from vosk.transcriber.transcriber import Transcriber  # loads its library, needs no model
    from websockets.exceptions import InvalidStatus
except (ImportError, OSError):
    missing("vosk not installed")

Before = Callable[[ServerProcess], Relay]
Final = dict[str, Any]
SAID = ("order", "porch_fan")
PACE_S = 0.05  # per piece, five times real time: answers do not wait for the text, and partials must appear
AUDIO = audio("order", 1.6, "porch_fan")


class Recording:
    """Replaces the decoder process whose `stdout` the client reads in pieces."""

    def __init__(self, data: bytes, between: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.stdout = self
        self._data, self._at, self._between = data, 0, between
        self.pieces = 0

    async def read(self, size: int) -> bytes:
        """Return the next piece; `between` is called with the number of pieces sent before."""
        if self._between is not None:
            await self._between(self.pieces)
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        self.pieces += bool(piece)
        return piece


def transcriber(url: str, output_type: str = "txt") -> Any:
    """Return the client without running its constructor, which would load a model that is not used here."""
    made = Transcriber.__new__(Transcriber)
    made.args = argparse.Namespace(server=url, output_type=output_type)
    return made


def recognize(client: Any, recording: Recording) -> tuple[list[Final], int]:
    """Run the client's own loop. A missing answer would hang it, an extra one would shift its text."""

    async def run() -> tuple[list[Final], int]:
        return await asyncio.wait_for(client.recognize_stream_server(recording), timeout=30)

    return asyncio.run(run())


def check(stream: Connection, pieces: int) -> None:
    """Check for exactly one answer to each piece and one to the end, then a normal close."""
    assert stream.status == 101
    assert len(stream.frames) == pieces + 1
    assert all(set(frame) in ({"partial"}, {"text"}, {"text", "result"}) for frame in stream.frames)
    assert any(len(frame.get("partial", "").split()) > 2 for frame in stream.frames)
    assert "text" in stream.frames[-1]
    assert stream.close_code == 1000


def test_a_recording(server: ServerProcess, relay: Before) -> None:
    before, recording = relay(server), Recording(AUDIO, lambda _: asyncio.sleep(PACE_S))
    client = transcriber(f"ws://{before.host}/vosk?key={KEY}")
    finals, samples = recognize(client, recording)
    assert samples == len(AUDIO)
    assert client.format_result(finals).split() == text(*SAID).split()
    check(before.only(), recording.pieces)


def test_subtitles(server: ServerProcess, relay: Before) -> None:
    """They are built from the words and their times, which this client does not request."""
    client = transcriber(f"ws://{relay(server).host}/vosk?key={KEY}", "srt")
    finals, _ = recognize(client, Recording(AUDIO))
    words = [word for final in finals for word in final.get("result", ())]
    assert [word["word"] for word in words] == text(*SAID).split()
    assert all(0 <= word["start"] <= word["end"] <= len(AUDIO) / BYTES_PER_S for word in words)
    assert all(0 < word["conf"] <= 1 for word in words)
    assert client.format_result(finals).startswith("1\n00:00:00,")


def test_the_separate_port_without_a_key() -> None:
    """Clients only support `ws://host:port/`."""
    port = free_port()
    with ServerProcess(vosk_port=port):
        client = transcriber(f"ws://127.0.0.1:{port}/")
        finals, _ = recognize(client, Recording(AUDIO))
        assert client.format_result(finals).split() == text(*SAID).split()


@pytest.mark.parametrize(("key", "status"), [("unknown key", 401), (KEY, 429), (THIRD_KEY, 503)])
def test_a_refusal_reaches_the_client_with_its_status(
    strict_server: ServerProcess, relay: Before, key: str, status: int
) -> None:
    client = transcriber(f"ws://{relay(strict_server).host}/vosk?key={key.replace(' ', '%20')}")
    with (
        Holders(strict_server, [KEY, OTHER_KEY][: {429: 1, 503: 2}.get(status, 0)]),
        pytest.raises(InvalidStatus) as refused,
    ):
        recognize(client, Recording(AUDIO))
    assert refused.value.response.status_code == status
