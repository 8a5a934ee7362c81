"""A client of any protocol on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.protocols.protocol_bench import END, PATHS, audio_message, final_text, start_of
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

PIECE_BYTES = 3_200


class WireStream:
    """A stream of one protocol; use it in a `with` block. Raises: websockets' InvalidStatus."""

    def __init__(
        self,
        server: LiveServer,
        protocol: str,
        key: str = "",
        *,
        host: str = "",
        path: str = "",
        headers: dict[str, str] | None = None,
        subprotocols: Any = None,
        **query: Any,
    ) -> None:
        """`host` and `path` are those of another port; the query overrides the protocol's."""
        path, _, given = (path or PATHS[protocol]).partition("?")
        url = f"ws://{host or server.host}{path}?{urlencode(dict(parse_qsl(given)) | query, doseq=True)}"
        headers = {"Authorization": f"Token {key}"} if key else headers
        options: Any = {"open_timeout": WAIT_S, "close_timeout": WAIT_S, "max_size": None, "legacy": True}
        self.protocol = protocol
        self.socket = connect(url, additional_headers=headers, subprotocols=subprotocols, **options)
        self.frames: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        for message in start_of(self.protocol):
            self.send(message)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: bytes | str | dict[str, Any]) -> None:
        """Send a message."""
        self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    def say(self, text: str, pause_s: float = 1.2) -> None:
        """Send speech and a silence, in pieces."""
        self.audio(spell(text).tobytes() + silence(pause_s).tobytes())

    def audio(self, pcm: bytes) -> None:
        """Send samples in pieces; a client of vosk waits for the answer to each."""
        for at in range(0, len(pcm), PIECE_BYTES):
            self.send(audio_message(self.protocol, pcm[at : at + PIECE_BYTES]))
            if self.protocol == "vosk":
                self.receive()

    def receive(self) -> dict[str, Any]:
        """Return the next frame. Raises: websockets' ConnectionClosed."""
        self.frames.append(json.loads(self.socket.recv(timeout=WAIT_S)))
        return self.frames[-1]

    def until(self, text: str) -> None:
        """Read until some frame has this text."""
        while text not in json.dumps(self.frames):
            self.receive()

    def rest(self) -> tuple[int, str]:
        """Read to the server's close; return its code and reason."""
        with pytest.raises(ConnectionClosed) as closed:
            self._read()
        close = closed.value.rcvd
        assert close is not None, "the connection was cut"
        return close.code, close.reason

    def finish(self) -> int:
        """End the stream as a client should; return the server's close code."""
        self.send(END[self.protocol])
        if self.protocol == "openai":
            self.until('.completed"')
            self.socket.close()
            return 1000
        return self.rest()[0]

    def texts(self) -> list[str]:
        """Return the texts of the finals so far, without empty ones."""
        return [text for frame in self.frames if (text := final_text(self.protocol, frame))]

    def _read(self) -> None:
        while True:
            self.receive()


FIELDS = {"transcript", "word", "punctuated_word", "text", "partial", "delta", "digit"}


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text that is in a field for recognized words."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in FIELDS and isinstance(item, str):
                yield item
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
