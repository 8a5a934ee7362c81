"""A connection without socket, engine or threads: messages in, frames out, answers on request."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.websockets import WebSocket

from server.audio.decode_queue import DecodingPool
from server.audio.decoder import open_decoder
from server.audio.formats import AudioForm, Encoding
from server.audio.pcm import PCM
from server.coordination.local import LocalCoordinator
from server.models.loading import ModelCard
from server.operations.metrics import Metrics
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.deepgram.live import DeepgramStream
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import parse_query
from server.protocols.deepgram.resumable import ResumableStream
from server.recognition.events import StepTiming
from server.recognition.messages import StateSaved, StepDecoded
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.recognition.steps import StepTag, Work
from server.resume.tickets import TicketService
from server.settings import Settings
from server.streaming.adapter import Adapter
from server.streaming.connection import Connection
from server.streaming.flow_control import ConnectionContext, LiveLimits
from server.streaming.transport import TRANSPORT_EXTENSION
from tests.support.servers.fakes import WAIT_S, FakeClock
from tests.support.servers.recognizers.array_slots import State, fresh_state
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, spelling_decoder
from tests.support.streams.engine_bench import session_on
from tests.support.streams.fake_transport import FakeTransport

MAX_CHANNELS = 3
IDLE_S = 0.01  # of the fake clock, which only a test advances
CARD = ModelCard("spelling", "1", "uuid")
Frame = dict[str, Any]


class InstantPool(DecodingPool):
    """Decodes at once; the result is delivered in the next turn of the event loop."""

    def submit(self, work: Callable[[], PCM]) -> asyncio.Future[PCM]:
        future: asyncio.Future[PCM] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - whatever it is goes into the future
            future.set_exception(error)
        return future


class ConnectionBench:
    """One connection; its steps wait, by channel, until `answer`."""

    in_binary = False
    """Whether messages in JSON are sent in binary frames, as some clients do."""

    def __init__(
        self,
        limits: Limits,
        live_limits: LiveLimits | None = None,
        adapter: Adapter | None = None,
        options: SessionOptions | None = None,
        form: AudioForm | None = None,
        *,
        decoder: Any = None,
        **query: str,
    ) -> None:
        """`options` are those of an adapter's session; without them, and without an adapter, the query's.

        `form`: of the audio of an adapter whose connection decodes it.
        """
        self.transport, self.clock, self.model = FakeTransport(), FakeClock(), SpellingModel()
        self.metrics = Metrics(max_batch=8, max_streams=8)
        request = parse_query(query.items(), MAX_CHANNELS)
        rate = CONFIG.sample_rate
        self._decoder = decoder or spelling_decoder()
        options = options or replace(request.options, sample_rate=request.options.sample_rate or rate)
        self.session = Session(options, CONFIG, self._decoder, limits)
        channels = len(self.session.channels)
        scope = {"type": "websocket", "extensions": {TRANSPORT_EXTENSION: self.transport}}
        live_limits = live_limits or LiveLimits(IDLE_S, 1e9, limits.max_backlog_s)
        context = ConnectionContext(live_limits, self.metrics, self.clock, InstantPool())
        socket: Any = WebSocket(scope, None, None)  # type: ignore[arg-type]
        projector = Projector(request, channels, "id", "now", CARD)
        decoder = open_decoder(request.form, rate, multichannel=request.options.multichannel)
        self.stream: Connection
        if adapter is not None:
            kind: Any = {"protocol": "vosk", "encoding": Encoding.LINEAR16, "request_id": "id"}
            kind["decoder"] = None if form is None else open_decoder(form, rate)
            self.stream = AdapterConnection(socket, self.session, adapter, context, **kind)
        elif request.options.resumable:
            coordinator = LocalCoordinator(Settings(), self.clock, wall_clock=self.clock)
            setup = ("spelling",)
            tickets = TicketService([], ttl_s=60.0, setup=lambda: setup, clock=self.clock, use=coordinator)
            stream = ResumableStream(socket, self.session, projector, context, decoder, tickets=tickets, tenant=b"t")
            self.stream = stream
        else:
            self.stream = DeepgramStream(socket, self.session, projector, context, decoder)
        self.recognition = session_on(self, self.session, self.stream)
        self.released = 0  # number of times that the recognition was closed
        self._work: list[deque[Work | None]] = [deque() for _ in range(channels)]  # None: export the state
        self._states = [self._fresh() for _ in range(channels)]
        self._answers_at_once = False
        self.timing: StepTiming | None = None  # of the answers

    def run(self, script: Callable[[ConnectionBench], Awaitable[None]]) -> None:
        """Run the script, then answer all work until the connection is closed."""

        async def play() -> None:
            running = asyncio.ensure_future(self.stream.run(self.recognition))
            await asyncio.sleep(0)
            await script(self)
            self._answers_at_once = True
            self.answer()
            async with asyncio.timeout(WAIT_S):
                await running

        asyncio.run(play())

    def send(self, message: bytes | str | Frame) -> None:
        """A message of the client."""
        if isinstance(message, dict):
            message = json.dumps(message).encode() if self.in_binary else json.dumps(message)
        self.stream.on_message(message)

    def answer(self, steps: int | None = None, channel: int | None = None) -> None:
        """Answer this many steps of one channel, or all waiting work."""
        for index in range(len(self._work)) if channel is None else (channel,):
            for _ in range(len(self._work[index]) if steps is None else min(steps, len(self._work[index]))):
                if self._work[index]:  # an answer may end the connection
                    self._answer(index, self._work[index].popleft())

    @property
    def frames(self) -> list[Frame]:
        """Return what was sent to the client."""
        return [json.loads(payload) for payload in self.transport.written]

    # As an engine

    def push(self, stream: int, pcm: PCM, *, tag: StepTag, reset: bool) -> None:
        self._work[stream].append(Work(stream, pcm, tag, reset))
        if self._answers_at_once:
            asyncio.get_running_loop().call_soon(self.answer)

    def export(self, stream: int) -> None:
        self._work[stream].append(None)

    def close(self, stream: int) -> None:
        self.released += stream == 0
        self._work[stream].clear()

    def _answer(self, index: int, piece: Work | None) -> None:
        channel = self.session.channels[index]
        if piece is None:
            self.stream.on_events(self.session.take(StateSaved(index, b"state")), None)
            return
        assert isinstance(piece.tag, StepTag)
        if piece.reset:
            self._states[index] = self._fresh()
        outputs, self._states[index] = self.model.step(piece.pcm[None], self._states[index])
        self._decoder.advance([channel.segment.state], outputs)
        self.stream.on_events(self.session.take(StepDecoded(index, piece.tag)), self.timing)

    def _fresh(self) -> State:
        return fresh_state(self.model, 1)
