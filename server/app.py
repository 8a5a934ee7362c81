"""The application: endpoints over one replica, and the engine's life inside the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import perf_counter

from fastapi import FastAPI, Response

from model.ctc.words import Decoder
from server.access.guard import Guard, QuotaRelease
from server.access.origins import allow_pages
from server.http.admin import admin_router, load_admin_keys
from server.http.api_docs import ABOUT, describe, describe_sockets
from server.http.health import add_health, kserve_router
from server.http.page import page_router
from server.http.token_endpoint import TokenEndpoint
from server.operations.process import on_sighup
from server.operations.watchdog import Watchdog
from server.protocols.deepgram.endpoints import Listen, Transcribe
from server.protocols.openai.endpoint import RealtimeEndpoint
from server.protocols.openai.transcriptions import Transcriptions
from server.protocols.twilio.endpoint import TwilioEndpoint
from server.protocols.uploads import Recordings
from server.protocols.vosk.endpoint import VoskEndpoint, VoskListener
from server.recognition.session import Session
from server.replica import STOP_TIMEOUT_S, MakeSession, Replica, build_replica
from server.served_model import ServedModel, VadModel
from server.settings import Settings


def create_app(
    settings: Settings,
    model: ServedModel,
    decoder: Decoder,
    vad_model: VadModel | None = None,
    clock: Callable[[], float] = perf_counter,
    *,
    make_session: MakeSession = Session,
) -> FastAPI:
    """Build the app around a loaded model. Its engine runs from the app's start-up to its shutdown."""
    replica = build_replica(settings, model, decoder, vad_model, clock, make_session=make_session)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pulse = Watchdog(replica)
        await replica.recognizer.start()
        pulse.start()
        await adapters.start()
        on_sighup(replica.keys.reload)
        yield
        adapters.stop()
        pulse.stop()
        replica.decoding.close()
        await asyncio.to_thread(replica.recognizer.stop, STOP_TIMEOUT_S)

    app = FastAPI(
        title="tutti", version=version("tutti-asr"), description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.replica = replica
    app.state.door = door = Guard(replica)
    app.add_middleware(QuotaRelease)
    allow_pages(app, settings)
    app.add_api_route("/v1/auth/grant", TokenEndpoint(replica, door).grant, methods=["POST"], response_class=Response)
    recordings = Recordings(replica)
    app.add_api_websocket_route("/v1/listen", Listen(replica, door).live)
    upload = Transcribe(replica, door, recordings).upload
    app.add_api_route("/v1/listen", upload, methods=["POST"], response_class=Response)
    adapters = Adapters(app, replica, door, recordings)
    app.include_router(page_router())
    app.include_router(kserve_router(replica))
    app.include_router(admin_router(replica.drain, load_admin_keys(settings)))
    add_health(app, replica)
    describe(app)
    describe_sockets(app)
    return app


class Adapters:
    """Adds the endpoints at once; what listens by itself does so from `start` to `stop`."""

    def __init__(self, app: FastAPI, replica: Replica, door: Guard, recordings: Recordings) -> None:
        settings = replica.settings
        vosk = VoskEndpoint(replica, door)
        app.add_api_websocket_route("/vosk", vosk.live)
        app.add_api_websocket_route("/v1/realtime", RealtimeEndpoint(replica, door).live)
        self.vosk = None if settings.vosk_port is None else VoskListener(vosk, replica, door, settings.vosk_port)
        app.add_api_websocket_route("/v1/twilio", TwilioEndpoint(replica, door).live)
        create = Transcriptions(replica, door, recordings).create
        app.add_api_route("/v1/audio/transcriptions", create, methods=["POST"], response_class=Response)
        app.state.adapters = self

    async def start(self) -> None:
        """Listen. Raises: OSError if an address is taken."""
        if self.vosk is not None:
            await self.vosk.start()

    def stop(self) -> None:
        """End what is left."""
        if self.vosk is not None:
            self.vosk.stop()
