"""Adapters with arbitrary frames: they answer or close, never raise, and their reasons fit a close frame."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.models.loading import ModelCard
from server.models.selection import ModelNames
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import parse_query
from server.protocols.flux.adapter import FluxAdapter
from server.protocols.flux.query import parse_query as parse_flux_query
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import SessionSettings
from server.protocols.twilio.adapter import TwilioAdapter
from server.protocols.vosk.adapter import VoskAdapter
from server.streaming.adapter import Adapter, Reject
from tests.support.servers.adapters import RATE

MODELS = ModelNames({"tiny": ("en",)}, {}, strict=True)
NAMES = st.sampled_from([
    "type", "event", "event_id", "session", "audio", "input", "format", "rate", "transcription", "model", "keywords",
    "turn_detection", "silence_duration_ms", "config", "sample_rate", "words", "max_alternatives", "phrase_list", "eof",
    "reset", "start", "media", "payload", "track", "dtmf", "digit", "mark", "name", "streamSid", "mediaFormat",
    "thresholds", "eot_threshold", "eager_eot_threshold", "eot_timeout_ms", "keyterms",
])  # fmt: skip
VALUES = st.sampled_from([
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear", "media",
    "start", "stop", "mark", "connected", "transcription", "audio/pcm", "audio/pcmu", "server_vad", "AAAA", "inbound",
    "Configure", "ForceEndTurn", "CloseStream",
])  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | VALUES
TREES = st.recursive(
    LEAVES, lambda tree: st.lists(tree, max_size=3) | st.dictionaries(NAMES, tree, max_size=5), max_leaves=16
)
TEXTS = st.text(max_size=40) | TREES.map(json.dumps) | st.dictionaries(NAMES, TREES, max_size=6).map(json.dumps)


def twilio() -> TwilioAdapter:
    request = parse_query([], 1)
    projector = Projector(request, 1, "id", "now", ModelCard("tiny", "1", "uuid"))
    return TwilioAdapter(projector, model_rate=RATE, track="inbound")


def realtime() -> RealtimeAdapter:
    return RealtimeAdapter("s", SessionSettings("tiny"), MODELS, model_rate=RATE, min_silence_ms=500.0)


def flux() -> FluxAdapter:
    pairs = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": "16000"}
    return FluxAdapter(parse_flux_query(tuple(pairs.items())), "id", delay_s=0.32)


MAKERS = [lambda: VoskAdapter(RATE), realtime, twilio, flux]


@pytest.mark.parametrize("make", MAKERS, ids=["vosk", "openai", "twilio", "flux"])
@given(frames=st.lists(TEXTS | st.binary(max_size=64), max_size=6))
def test_no_client_frame_makes_an_adapter_raise(make: type[Adapter], frames: list[str | bytes]) -> None:
    adapter = make()
    for frame in frames:
        actions = list(adapter.text(frame) if isinstance(frame, str) else adapter.binary(frame))
        assert all(len(action.why.encode()) <= 110 for action in actions if isinstance(action, Reject))
