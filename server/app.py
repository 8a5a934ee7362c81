"""The application: endpoints over one replica, and the engine's life inside the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import perf_counter

import msgspec
from fastapi import FastAPI, Response

from model.ctc.words import Decoder
from server.access.guard import Door, GivesBack
from server.access.origins import allow_pages
from server.adapters import Adapters
from server.http.admin import admin_router, load_admin_keys
from server.http.api_docs import describe
from server.http.asyncapi import describe_sockets
from server.http.health import kserve_router
from server.http.page import page_router
from server.http.token_endpoint import Grant
from server.operations.hangup import on_hangup
from server.operations.watchdog import Pulse
from server.protocols.deepgram.endpoints import Listen
from server.protocols.deepgram.transcribe import Transcribe
from server.protocols.uploads import Recordings
from server.recognition.session import Session
from server.replica import MakeSession, Replica
from server.settings import Settings
from server.wiring import ServedModel, VadModel, build_replica

STOP_TIMEOUT_S = 5.0  # for the batch that is running
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ABOUT = """Streaming speech recognition, compatible with Deepgram's `/v1/listen`.

Live streams are WebSockets: `GET /v1/listen?encoding=linear16&sample_rate=16000` with `Upgrade: websocket`, binary
frames of audio in, JSON frames out: `/asyncapi.yaml` describes them. The uploads below take the same parameters.

**Query parameters.** What is not listed is accepted and named in the answer's `x-ignored-params` header.

| parameter | default | meaning |
|---|---|---|
| `encoding`, `sample_rate` | – | `linear16`, `linear32` (float), `mulaw`, `alaw`, `opus` (one packet a \
message) with `sample_rate`, 8 to 48 kHz; `ogg-opus`, `flac`; without it the first bytes tell WAV, Ogg Opus, \
WebM or FLAC |
| `channels`, `multichannel` | 1, `false` | interleaved channels, mixed down unless `multichannel`; of a live \
container `channels` says how many it has |
| `resumable` (ours) | `false` | tickets with which a stream goes on after a lost connection, on any replica; \
only with `linear16`, `linear32`, `mulaw`, `alaw` |
| `interim_results` | `false` | partials, each time the words changed |
| `interim_interval_ms` (ours) | 0 | at most one partial of a segment in so much audio |
| `stable_words` (ours) | `false` | adds `tutti.stable_words`: so many words, from the first, can no longer change |
| `step_results` (ours) | `false` | answers every step, and adds where the time of the step went |
| `latency` (ours) | `false` | adds `tutti.latency` to each result that answers audio: where its time went |
| `endpointing` | 10 ms | silence that ends an utterance, at least the server's minimum; `false`: none |
| `utterance_end_ms` | off | sends `UtteranceEnd` after so much silence |
| `latency_budget_ms` (ours) | the server's | time in which a live step should be answered, 20 to 10,000 ms |
| `vad_events` | `false` | sends `SpeechStarted` |
| `keyterm` | – | a word or phrase to listen for; repeatable. Greedy decoding ignores it, as the next |
| `keywords` | – | the older form: `word` or `word:boost`, a boost below 0 for words not to hear; repeatable |
| `punctuate` | `false` | capitals, and a mark at the end of each utterance: a guess from the words |
| `numerals` | `false` | in final results, numbers with digits: the words "twenty one" become one, 21; \
a number below 4 that stands alone stays a word, and digits told one by one stay apart |
| `smart_format` | `false` | `punctuate` and `numerals` |
| `model`, `version`, `tag`, `extra`, `no_delay`, `mip_opt_out` | – | accepted |

**An endpoint** (`speech_final`) comes when the last word lies `endpointing` ms back, and with empty text when nothing
was said for 2.4 s. An utterance longer than the server's maximum is cut behind a finished word, without `speech_final`.

**Key terms** are at most 200, of 2,500 characters together, of 20 words each, `keyterm` and `keywords` taken as one.

**Formatted text** is the `transcript`, and `punctuated_word` beside each word as it was recognised.

**Text frames from the client:** `KeepAlive`, `Finalize` (flush, stay open), `CloseStream`, and `Configure` with
`keyterms`, which replaces those of `keyterm` for the audio that follows (`null`: leave them, `[]`: none); its
`features` are ignored. `ConfigureSuccess` names the key terms that hold; `ConfigureFailure` says why the old ones do:
too many, a greedy decoder, or (`CONFIGURE_ALREADY_PENDING`) too many changes: a full set at once is not, nor are 500
characters for each second of audio.
"""


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
        pulse = Pulse(replica)
        await replica.recognizer.start()
        pulse.start()
        await adapters.start()
        on_hangup(replica.keys.reload)
        yield
        adapters.stop()
        pulse.stop()
        replica.decoding.close()
        await asyncio.to_thread(replica.recognizer.stop, STOP_TIMEOUT_S)

    app = FastAPI(title="tutti", version=version("tutti"), description=ABOUT, lifespan=lifespan)
    app.state.replica = replica
    app.state.door = door = Door(replica)
    app.add_middleware(GivesBack)
    allow_pages(app, settings)
    app.add_api_route("/v1/auth/grant", Grant(replica, door).grant, methods=["POST"], response_class=Response)
    recordings = Recordings(replica)
    app.add_api_websocket_route("/v1/listen", Listen(replica, door).live)
    upload = Transcribe(replica, door, recordings).upload
    app.add_api_route("/v1/listen", upload, methods=["POST"], response_class=Response)
    adapters = Adapters(app, replica, door, recordings)
    app.include_router(page_router())
    app.include_router(kserve_router(replica))
    app.include_router(admin_router(replica.drain, load_admin_keys(settings)))
    _add_health(app, replica)
    describe(app)
    describe_sockets(app)
    return app


def _add_health(app: FastAPI, replica: Replica) -> None:
    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        """Say that the process and its event loop are alive; the engine is not asked."""
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Answer 200 while new streams may come: loaded, warm, moving and not draining. A full replica is ready."""
        ready = replica.ready
        return Response("ready\n" if ready else "not ready\n", 200 if ready else 503, media_type="text/plain")

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Expose Prometheus metrics."""
        return Response(replica.metrics.exposition(), media_type=METRICS_TYPE)

    @app.get("/v1/status", response_class=Response)
    async def status() -> Response:
        """Describe the replica in the manner of a self-hosted Deepgram engine."""
        return Response(msgspec.json.encode(_status(replica)), media_type="application/json")


def _status(replica: Replica) -> dict[str, object]:
    word = "draining" if replica.sessions.draining else "healthy" if replica.ready else "critical"
    return {
        "system_health": word.capitalize(),
        "active_stream_requests": replica.sessions.count("deepgram"),
        "active_batch_requests": replica.sessions.count("upload"),
        "slots_used": replica.recognizer.slots_used,
        "slots_total": replica.settings.slots,
        "model": {"name": replica.card.name, "version": replica.card.version, "uuid": replica.card.uuid},
    }
