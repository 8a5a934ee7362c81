"""The real app on a real socket, in a thread of the test's process, and small clients for it."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Self
from urllib.parse import urlencode

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from server.app import create_app
from server.audio.pcm import PCM
from server.configuration.addresses import open_address
from server.models.engine_source import LocalEngines
from server.models.loading import LoadedModel
from server.models.service import NO_AUXILIARY
from server.recognition.session import Session
from server.serve import DrainingServer
from server.settings import Settings
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.spelling import SpellingModel, spelling_decoder

RAW = {"encoding": "linear16", "sample_rate": 16_000}
Frame = dict[str, Any]


class LiveServer:
    """A server that runs inside a `with` block."""

    def __init__(
        self,
        model: Any = None,
        decoder: Any = None,
        auxiliary: Any = NO_AUXILIARY,
        clock: Any = None,
        make_session: Any = Session,
        *,
        outlines: Any = (),
        **settings: Any,
    ) -> None:
        """`model` may be several, as `LoadedModel`s, the default first; `outlines` are of those that can be loaded."""
        self.model = model or SpellingModel()
        self.settings = Settings(**({"port": 0, "max_streams": 64, "admin_local": True} | settings))
        one = not isinstance(model, Sequence)
        models = [LoadedModel.of(self.model, decoder or spelling_decoder())] if one else model
        small = {kind: LocalEngines(model) for kind, model in auxiliary.items()}
        parts = (models, small, clock or perf_counter)
        self.application = create_app(self.settings, *parts, make_session=make_session, outlines=outlines)
        self.app, self.replica = self.application.asgi, self.application.replica
        self.server = _Announcing(self.application)
        self._thread = threading.Thread(target=self.server.run, name="server")
        self._changes = _Changes(self.replica)

    def __enter__(self) -> Self:
        self._thread.start()
        self._where = self.server.up.get(timeout=WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.join()

    def join(self) -> None:
        """Wait until the server's thread ends."""
        self._thread.join(timeout=WAIT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    @property
    def host(self) -> str:
        """Address and port."""
        return self._where

    @property
    def vosk_port(self) -> int:
        """The separate port for vosk clients, with `vosk_port=0`."""
        return self.application.ports["vosk_port"].port

    @property
    def metrics_port(self) -> int:
        """The separate port for metrics, with `metrics_port=0`."""
        return self.application.ports["metrics_port"].port

    @property
    def wyoming_port(self) -> int:
        """The port of Wyoming, with `wyoming_port=0`."""
        return self.application.ports["wyoming_port"].port

    @property
    def audiosocket_port(self) -> int:
        """The port of AudioSocket, with `audiosocket_port="0?forward_url=…"`."""
        return self.application.ports["audiosocket_port"].port

    @property
    def http(self) -> httpx.Client:
        """A client for the plain endpoints."""
        return httpx.Client(base_url=f"http://{self._where}", timeout=WAIT_S)

    def url(self, **query: Any) -> str:
        """Return the URL of live streams; the query has 16 kHz raw audio unless overridden."""
        asked = {k: v for k, v in (RAW | query).items() if v is not None}
        return f"ws://{self._where}/v1/listen?{urlencode(asked, doseq=True)}"

    def listen(self, headers: dict[str, str] | None = None, **query: Any) -> Client:
        """Open a live stream. Raises: websockets' InvalidStatus."""
        return Client(
            connect(
                self.url(**query),
                additional_headers=headers,
                compression=None,
                open_timeout=WAIT_S,
                close_timeout=WAIT_S,
            )
        )

    def metric(self, line: str) -> float:
        """Return the value of one sample of `/metrics`; without labels the sum over them; 0 if absent."""
        rows = self.http.get("/metrics").text.splitlines()
        found = [row for row in rows if row.startswith((line + " ", line + "{"))]
        return sum(float(row.rsplit(" ", 1)[1]) for row in found)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when the condition is true; it is checked whenever a batch, a close or a session's end is reported."""
        self._changes.wait_until(holds, self.server.loop)

    def cut_connections(self) -> None:
        """Cut all connections, as killing the server does."""

        def cut() -> None:
            for session in self.replica.sessions.snapshot():
                session._transport.abort()

        self.server.loop.call_soon_threadsafe(cut)

    def wait_idle(self) -> None:
        """Return when every session has ended and every slot is free."""
        self.wait_until(lambda: not len(self.replica.sessions) and not self.replica.models.slots_used)


class _Announcing(DrainingServer):
    """A server that puts its address into a queue once it listens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.up: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.up.put(open_address(host, port).removeprefix("http://"))


class _Changes:
    """Checks conditions after every call that can change the replica, on the event loop."""

    def __init__(self, replica: Any) -> None:
        self._waiting: list[tuple[Callable[[], bool], threading.Event]] = []
        for service in replica.models:
            self._watch(service)
        builder = replica.models._builder
        builder.build = self._then_watch(builder.build)  # of models that are loaded later
        replica.sessions.remove = self._then_check(replica.sessions.remove)
        replica.sessions.add = self._then_check(replica.sessions.add)

    def wait_until(self, holds: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        done = threading.Event()

        def begin() -> None:
            self._waiting.append((holds, done))
            self._check()

        loop.call_soon_threadsafe(begin)
        assert done.wait(timeout=WAIT_S), "it never came to hold"

    def _then_watch(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def built(*args: Any) -> Any:
            service = build(*args)
            self._watch(service)
            return service

        return built

    def _watch(self, service: Any) -> None:
        recognizer, slots = service.recognizer, service.recognizer.slots
        for owner, name in ((recognizer, "_on_event"), (recognizer, "_on_auxiliary_event"), (slots, "_count")):
            setattr(owner, name, self._then_check(getattr(owner, name)))

    def _then_check(self, change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any, **options: Any) -> None:
            change(*args, **options)
            self._check()

        return changed

    def _check(self) -> None:
        for entry in [entry for entry in self._waiting if entry[0]()]:
            self._waiting.remove(entry)
            entry[1].set()


class Client:
    """A live stream as a client sees it."""

    def __init__(self, connecting: connect) -> None:
        self._connecting = connecting
        self.socket = connecting.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connecting.__exit__(None, None, None)

    def vanish(self) -> None:
        """Cut the connection without a close frame."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)

    def send(self, audio: PCM | bytes) -> None:
        """Send audio, as one message."""
        self.socket.send(audio if isinstance(audio, bytes) else audio.tobytes())

    def say(self, type_: str, **fields: Any) -> None:
        """Send a text frame."""
        self.socket.send(json.dumps({"type": type_, **fields}))

    def receive(self) -> Frame:
        """The next frame. Raises: websockets' ConnectionClosed."""
        frame: Frame = json.loads(self.socket.recv(timeout=WAIT_S))
        return frame

    def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """Frames up to the first one that is wanted."""
        frames = [self.receive()]
        while not wanted(frames[-1]):
            frames.append(self.receive())
        return frames

    def rest(self) -> tuple[list[Frame], int, str]:
        """Frames up to the server's close, its code and its reason."""
        frames: list[Frame] = []
        with pytest.raises(ConnectionClosed) as closed:
            self._receive_into(frames)
        close = closed.value.rcvd
        assert close is not None, "the connection was cut"
        return frames, close.code, close.reason

    def _receive_into(self, frames: list[Frame]) -> None:
        while True:
            frames.append(self.receive())

    def finish(self) -> list[Frame]:
        """End the stream as a client should, and return the remaining frames; the server must close it normally."""
        self.say("CloseStream")
        frames, code, _ = self.rest()
        assert code == 1000
        return frames


def transcript(frames: list[Frame]) -> str:
    """The text of all finals."""
    texts = [f["channel"]["alternatives"][0]["transcript"] for f in frames if f["type"] == "Results" and f["is_final"]]
    return " ".join(text for text in texts if text)
