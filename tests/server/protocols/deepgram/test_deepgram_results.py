"""Deepgram's JSON frames for recognition events, as tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.ctc.words import Word
from server.errors import CLOSES, CloseReason
from server.models.loading import ModelCard
from server.protocols.deepgram.projector import MAX_ECHO, Projector
from server.protocols.deepgram.transcript import recording_answer
from server.recognition.events import (
    Closed,
    Event,
    Final,
    FinalReason,
    Partial,
    SpeechStarted,
    StepTiming,
    StreamBroken,
    UtteranceGap,
)
from server.text.formatting import format_words
from tests.support.protocols.listen_query import RAW, query

CARD = ModelCard.of("small", "3", "00ff")
WORDS = (Word("turn", 3.36, 3.6, 0.97), Word("down", 4.2, 4.56, 0.91))
SPOKEN = (Word("call", 0.1, 0.3, 0.9), Word("twenty", 0.4, 0.6, 0.8), Word("one", 0.6, 0.8, 0.6))
TIMING = StepTiming(
    arrived_s=1.0, queue_wait_s=0.001, step_s=0.002, handover_s=0.0002, decode_s=0.0005, decoded_s=1.0037, rows=7
)
PARTIAL = Partial(0, 3.2, 1.96, WORDS, 1)
EMPTY = {"alternatives": [{"transcript": "", "confidence": 0.0, "words": []}]}
MODEL = {"name": "small", "version": "3", "arch": "ctc-rnn"}
STEP = {"stable_words": 1, "audio_processed_s": 5.16, "queue_wait_ms": 1.0, "step_ms": 2.0, "decode_ms": 0.5}
LATENCY = {"queue_ms": 1.0, "step_ms": 2.0, "handover_ms": 0.2, "decode_ms": 0.5, "write_ms": 0.3, "batch": 7}


def final(reason: FinalReason = FinalReason.ENDPOINT, words: tuple[Word, ...] = WORDS, channel: int = 0) -> Final:
    return Final(channel, 3.2, 1.96, words, reason)


def projector(asked: str = "", channels: int = 1) -> Projector:
    return Projector(query(RAW + asked), channels, "req-1", "2026-11-20T08:00:00.000Z", CARD)


def frame(event: Event, asked: str = "", channels: int = 1, timing: StepTiming | None = TIMING) -> dict[str, Any]:
    payload = projector(asked, channels).frame(event, timing, 0.0003)
    assert payload is not None
    assert payload.startswith(b'{"type":"'), "clients select the class by the first field"
    decoded: dict[str, Any] = json.loads(payload)
    return decoded


def flags(is_final: bool, speech_final: bool, from_finalize: bool) -> dict[str, bool]:
    return {"is_final": is_final, "speech_final": speech_final, "from_finalize": from_finalize}


FIELDS: list[tuple[Event, str, dict[str, Any]]] = [
    (PARTIAL, "", flags(False, False, False) | {"tutti": None}),
    (final(), "", flags(True, True, False)),
    (final(FinalReason.FINALIZE), "", flags(True, True, True)),
    (final(FinalReason.CLOSE), "", flags(True, True, False)),
    (final(FinalReason.MAX_LEN), "", flags(True, False, False)),
    (final(FinalReason.ENDPOINT, ()), "", flags(True, False, False)),
    (Final(0, 5.16, 0.0, (), FinalReason.FINALIZE), "", {"start": 5.16, "duration": 0.0, "channel": EMPTY}),
    (PARTIAL, "&step_results=true", {"tutti": STEP}),
    (PARTIAL, "&step_results=true&latency=true", {"tutti": STEP | {"latency": LATENCY}}),
    (PARTIAL, "&latency=true", {"tutti": {"stable_words": 1, "latency": LATENCY}}),
    (PARTIAL, "&stable_words=true", {"tutti": {"stable_words": 1}}),
    (final(), "&step_results=true", {"tutti": STEP | {"stable_words": 2, "endpoint_delay_ms": 600.0}}),
    (final(FinalReason.FINALIZE), "&step_results=true", {"tutti": STEP | {"stable_words": 2}}),
    (final(words=()), "&step_results=true", {"tutti": STEP | {"stable_words": 0}}),
    (final(words=SPOKEN), "&stable_words=true&numerals=true", {"tutti": {"stable_words": 2}}),
]


@pytest.mark.parametrize(("event", "asked", "fields"), FIELDS)
def test_results_have_the_fields_of_their_event(event: Event, asked: str, fields: dict[str, Any]) -> None:
    found = frame(event, asked)
    assert {name: found.get(name) for name in fields} == fields


def test_a_result_that_answers_no_step_has_no_times() -> None:
    assert "tutti" not in frame(final(FinalReason.FINALIZE, ()), "&latency=true", timing=None)
    assert frame(final(), "&stable_words=true", timing=None)["tutti"] == {"stable_words": 2}
    whole_s = TIMING.decoded_s - TIMING.arrived_s + 0.0003
    assert sum(part for name, part in LATENCY.items() if name != "batch") == pytest.approx(whole_s * 1e3)


FRAMES: list[tuple[Event, str, dict[str, Any]]] = [
    (
        final(channel=1),
        "",
        {
            "type": "Results", "channel_index": [1, 2], "start": 3.2, "duration": 1.96, **flags(True, True, False),
            "channel": {"alternatives": [{"transcript": "turn down", "confidence": 0.94, "words": [
                {"word": "turn", "start": 3.36, "end": 3.6, "confidence": 0.97},
                {"word": "down", "start": 4.2, "end": 4.56, "confidence": 0.91},
            ]}]},
            "metadata": {"request_id": "req-1", "model_info": MODEL, "model_uuid": CARD.uuid},
        },
    ),
    (SpeechStarted(0, 3.3), "&vad_events=true", {"type": "SpeechStarted", "channel": [0, 2], "timestamp": 3.3}),
    (UtteranceGap(0, 4.56), "", {"type": "UtteranceEnd", "channel": [0, 2], "last_word_end": 4.56}),
    (
        StreamBroken(ValueError("secret path")),
        "",
        {"type": "Error", "variant": "InternalError", "description": "recognition failed on this stream"},
    ),
    (
        Closed(CloseReason.CLOSE_STREAM, 12.4),
        "",
        {
            "type": "Metadata", "transaction_key": "deprecated", "request_id": "req-1", "sha256": "incomplete",
            "created": "2026-11-20T08:00:00.000Z", "duration": 12.4, "channels": 2, "models": [CARD.uuid],
            "model_info": {CARD.uuid: MODEL},
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("event", "asked", "whole"), FRAMES)
def test_a_frame_has_every_field(event: Event, asked: str, whole: dict[str, Any]) -> None:
    assert frame(event, asked, channels=2) == whole


def test_frames_that_nobody_asked_for_are_not_sent_and_a_silent_stream_names_no_model() -> None:
    assert projector().frame(SpeechStarted(0, 3.3)) is None
    assert not {"models", "model_info"} & frame(Closed(CloseReason.IDLE, 0.0)).keys()


@pytest.mark.parametrize(
    ("asked", "partial", "closed"),
    [
        ("&smart_format=true", ["Call", "twenty", "one"], ["Call", "21."]),
        ("&punctuate=true", ["Call", "twenty", "one"], ["Call", "twenty", "one."]),
        ("&numerals=true", ["call", "twenty", "one"], ["call", "21"]),
        ("&smart_format=false", None, None),
    ],
)
def test_formatting_is_in_the_transcript_and_in_punctuated_word(asked: str, partial: Any, closed: Any) -> None:
    for event, shown in ((Partial(0, 0.0, 1.0, SPOKEN, 0), partial), (final(words=SPOKEN), closed)):
        found = frame(event, asked)["channel"]["alternatives"][0]
        texts = shown or ["call", "twenty", "one"]
        assert [word.get("punctuated_word") for word in found["words"]] == (shown or [None] * 3)
        assert found["transcript"] == " ".join(texts)
        assert " ".join(word["word"] for word in found["words"]) == "call twenty one"
        assert (found["words"][0]["start"], found["words"][-1]["end"]) == (0.1, 0.8)


def test_each_channel_has_separate_sentences() -> None:
    both, texts = projector("&punctuate=true", 2), []
    for channel, reason in ((0, FinalReason.MAX_LEN), (1, FinalReason.ENDPOINT), (0, FinalReason.ENDPOINT)):
        payload = both.frame(final(reason, channel=channel))
        assert payload is not None
        texts.append(json.loads(payload)["channel"]["alternatives"][0]["transcript"])
    assert texts == ["Turn down", "Turn down.", "turn down."]


def test_an_error_repeats_the_start_of_the_message() -> None:
    error = {"type": "Error", "variant": "SchemaError", "description": "why", "message": "x" * MAX_ECHO}
    assert json.loads(projector().complaint("why", "x" * 10_000)) == error


def test_the_uuid_of_a_model_depends_on_its_weights() -> None:
    assert ModelCard.of("a", "1", "00ff").uuid == ModelCard.of("b", "2", "00ff").uuid
    assert ModelCard.of("a", "1", "00ff").uuid != ModelCard.of("a", "1", "00fe").uuid


def test_the_answer_to_an_upload_has_a_transcript_for_each_channel() -> None:
    how: dict[str, Any] = {"request_id": "r", "sha256": "ab", "created": "now", "duration_s": 12.4, "model": CARD}
    found = json.loads(recording_answer([format_words(WORDS), format_words(())], punctuated=False, **how))
    assert found["metadata"]["channels"] == 2
    assert found["metadata"]["model_info"][CARD.uuid]["name"] == "small"
    assert [c["alternatives"][0]["transcript"] for c in found["results"]["channels"]] == ["turn down", ""]
    assert found["results"]["utterances"] == []


def test_close_reasons_fit_into_a_close_frame_and_1001_is_never_used() -> None:
    for close in CLOSES.values():
        assert len(close.reason.encode()) <= 123
        assert close.code != 1001
    for part in ("did not receive audio data", "within the timeout window", "net0001"):
        assert part in CLOSES[CloseReason.IDLE].reason
