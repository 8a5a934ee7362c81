"""The server process: threads, logs, uvicorn, signals. What `tutti serve` runs.

uvicorn closes every WebSocket the moment it is told to stop, so the first signal is ours: it drains, and only an empty
server is stopped. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from types import FrameType

import structlog
import torch
import uvicorn
from fastapi import FastAPI

from model.acoustic import AcousticModel
from model.ctc import Decoder
from server.app import STOP_TIMEOUT_S, create_app
from server.decoders import make_decoder
from server.logs import configure_logs
from server.protocol import ListenProtocol
from server.replica import Replica
from server.settings import Settings
from server.wiring import VadModel

FLUSH_TIMEOUT_S = 3.0  # for finals, summaries and closes of the streams that a drain did not wait for
MAX_MESSAGE_BYTES = 2**20
SHUTDOWN_TIMEOUT_S = 5  # for connections that not even a close ends

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.serve")


class DrainingServer(uvicorn.Server):
    """uvicorn that stops only when its streams have ended, or been flushed and closed with 1012."""

    def __init__(self, config: uvicorn.Config, replica: Replica) -> None:
        super().__init__(config)
        self._replica = replica
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self.forced_by: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            _log.info("listening", url=f"http://{host}:{port}", model=self._replica.card.name)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """First signal: drain. Any later one: stop at once."""
        if self._loop is None or self._replica.sessions.draining:
            self.forced_by = sig
            self.should_exit = self.force_exit = True
        else:
            self._replica.sessions.draining = True
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Drain in the background, then stop. On the loop."""
        self._drain = asyncio.ensure_future(self._drain_and_stop())

    async def _drain_and_stop(self) -> None:
        sessions, timeout_s = self._replica.sessions, self._replica.settings.drain_timeout_s
        _log.info("draining", sessions=len(sessions), timeout_s=timeout_s)
        await sessions.drain(timeout_s, FLUSH_TIMEOUT_S)
        self.should_exit = True


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn is to run the app. Sources: operations.md 7 and design.md 4."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws=ListenProtocol,
        ws_per_message_deflate=False,  # PCM does not compress, and it costs memory and time for each connection
        ws_max_size=MAX_MESSAGE_BYTES,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )


def run(settings: Settings) -> int:
    """Serve until told to stop; return the exit code: 0 after a drain, 128 + signal if forced. Raises: ModelError."""
    configure_logs(settings)
    shorten_switches()
    app = create_app(settings, *load_served(settings))
    server = DrainingServer(uvicorn_config(app, settings), app.state.replica)
    # What was loaded lives as long as the process: a collection that walks it holds every stream up (90 ms, measured).
    gc.collect()
    gc.freeze()
    try:
        server.run()
    except SystemExit as error:  # uvicorn's way to say that it could not start; it has logged why
        return int(error.code or 0)
    finally:
        app.state.replica.recognizer.stop(STOP_TIMEOUT_S)  # a forced stop skips the app's own shutdown
    return 0 if server.forced_by is None else 128 + server.forced_by


def set_threads(threads: int) -> None:
    """Set torch's compute threads; 0 leaves one core to the event loop.

    With every core in a parallel region, a step waits at its barriers for whichever core is busy elsewhere.
    """
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) - 1))


def shorten_switches() -> None:
    """Let a thread that waits for the interpreter have it after half a millisecond instead of five.

    The model thread needs it for microseconds between two long stretches without it; while the event loop works through
    a burst of messages, the default lets a batch stand still for longer than it takes to compute.
    """
    sys.setswitchinterval(0.0005)


def load_served(settings: Settings) -> tuple[AcousticModel, Decoder, VadModel | None]:
    """Load what the settings name, and set the process's compute threads. Raises: ModelError."""
    set_threads(settings.threads)
    model = AcousticModel.load(settings.model, device=settings.device, precision=settings.precision)
    return model, make_decoder(settings, model.config), load_vad(settings)


def load_vad(settings: Settings) -> VadModel | None:
    """Load the voice-activity model that the settings ask for."""
    if settings.vad == "off":
        return None
    from model.vad import SileroVad

    return SileroVad.load(device="cpu")
