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
TIMING = StepTiming(
    arrived_s=1.0, queue_wait_s=0.001, step_s=0.002, handover_s=0.0002, decode_s=0.0005, decoded_s=1.0037, rows=7
)


def frame(event: Event, text: str = RAW, channels: int = 1, timing: StepTiming | None = TIMING) -> dict[str, Any]:
    payload = Projector(query(text), channels, "req-1", "2026-11-20T08:00:00.000Z", CARD).frame(event, timing)
    assert payload is not None
    assert payload.startswith(b'{"type":"'), "clients select the class by the first field"
    decoded: dict[str, Any] = json.loads(payload)
    return decoded


@pytest.mark.parametrize(
    ("event", "flags"),
    [
        (Partial(0, 3.2, 1.0, WORDS, 1), (False, False, False)),
        (Final(0, 3.2, 1.96, WORDS, FinalReason.ENDPOINT), (True, True, False)),
        (Final(0, 3.2, 1.96, WORDS, FinalReason.FINALIZE), (True, True, True)),
        (Final(0, 3.2, 1.96, WORDS, FinalReason.CLOSE), (True, True, False)),
        (Final(0, 3.2, 1.96, WORDS, FinalReason.MAX_LEN), (True, False, False)),
    ],
)
def test_results_have_the_flags_of_their_event(event: Event, flags: tuple[bool, bool, bool]) -> None:
    found = frame(event)
    assert (found["is_final"], found["speech_final"], found["from_finalize"]) == flags


def test_results_have_every_field() -> None:
    found = frame(Final(1, 3.2, 5.16 - 3.2, WORDS, FinalReason.ENDPOINT), channels=2)
    assert found == {
        "type": "Results",
        "channel_index": [1, 2],
        "start": 3.2,
        "duration": 1.96,
        "is_final": True,
        "speech_final": True,
        "from_finalize": False,
        "channel": {
            "alternatives": [
                {
                    "transcript": "turn down",
                    "confidence": 0.94,
                    "words": [
                        {"word": "turn", "start": 3.36, "end": 3.6, "confidence": 0.97},
                        {"word": "down", "start": 4.2, "end": 4.56, "confidence": 0.91},
                    ],
                }
            ]
        },
        "metadata": {
            "request_id": "req-1",
            "model_info": {"name": "small", "version": "3", "arch": "ctc-rnn"},
            "model_uuid": CARD.uuid,
        },
    }


def test_empty_results_have_the_same_fields() -> None:
    found = frame(Final(0, 5.16, 0.0, (), FinalReason.FINALIZE))
    assert found["channel"] == {"alternatives": [{"transcript": "", "confidence": 0.0, "words": []}]}
    assert (found["start"], found["duration"]) == (5.16, 0.0)


SPOKEN = (Word("call", 0.1, 0.3, 0.9), Word("twenty", 0.4, 0.6, 0.8), Word("one", 0.6, 0.8, 0.6))


@pytest.mark.parametrize(
    ("parameter", "partial", "final"),
    [
        ("smart_format", ["Call", "twenty", "one"], ["Call", "21."]),
        ("punctuate", ["Call", "twenty", "one"], ["Call", "twenty", "one."]),
        ("numerals", ["call", "twenty", "one"], ["call", "21"]),
    ],
)
def test_formatting_is_in_the_transcript_and_in_punctuated_word(
    parameter: str, partial: list[str], final: list[str]
) -> None:
    for event, shown in (
        (Partial(0, 0.0, 1.0, SPOKEN, 0), partial),
        (Final(0, 0.0, 1.0, SPOKEN, FinalReason.ENDPOINT), final),
    ):
        found = frame(event, f"{RAW}&{parameter}=true")["channel"]["alternatives"][0]
        assert [w["punctuated_word"] for w in found["words"]] == shown
        assert found["transcript"] == " ".join(shown)
        assert " ".join(w["word"] for w in found["words"]) == "call twenty one"
        assert (found["words"][0]["start"], found["words"][-1]["end"]) == (0.1, 0.8)


def test_formatting_is_off_by_default() -> None:
    found = frame(Final(0, 0.0, 1.0, SPOKEN, FinalReason.ENDPOINT), f"{RAW}&smart_format=false")
    assert found["channel"]["alternatives"][0]["transcript"] == "call twenty one"
    assert all("punctuated_word" not in w for w in found["channel"]["alternatives"][0]["words"])


def test_each_channel_has_separate_sentences() -> None:
    projector = Projector(query(RAW + "&punctuate=true"), 2, "r", "c", CARD)
    texts = []
    for channel, reason in ((0, FinalReason.MAX_LEN), (1, FinalReason.ENDPOINT), (0, FinalReason.ENDPOINT)):
        payload = projector.frame(Final(channel, 0.0, 1.0, WORDS, reason))
        assert payload is not None
        texts.append(json.loads(payload)["channel"]["alternatives"][0]["transcript"])
    assert texts == ["Turn down", "Turn down.", "turn down."]


def test_step_results_report_the_times_of_the_step() -> None:
    found = frame(Partial(0, 3.2, 1.96, WORDS, 1), RAW + "&step_results=true")
    parts = {"audio_processed_s": 5.16, "queue_wait_ms": 1.0, "step_ms": 2.0, "decode_ms": 0.5}
    assert found["tutti"] == {**parts, "stable_words": 1}
    assert "tutti" not in frame(Partial(0, 3.2, 1.96, WORDS, 0))


def test_latency_true_reports_the_parts_of_a_results_latency() -> None:
    asked, event = RAW + "&latency=true", Partial(0, 3.2, 1.96, WORDS, 1)
    payload = Projector(query(asked), 1, "r", "c", CARD).frame(event, TIMING, write_s=0.0003)
    assert payload is not None
    split = json.loads(payload)["tutti"]["latency"]
    assert split == {
        "queue_ms": 1.0,
        "step_ms": 2.0,
        "handover_ms": 0.2,
        "decode_ms": 0.5,
        "write_ms": 0.3,
        "batch": 7,
    }
    whole_s = TIMING.decoded_s - TIMING.arrived_s
    assert sum(split[part] for part in split if part.endswith("_ms")) == pytest.approx((whole_s + 0.0003) * 1e3)
    assert "tutti" not in frame(event)
    assert "latency" not in frame(event, RAW + "&step_results=true&stable_words=true")["tutti"]
    assert "tutti" not in frame(Final(0, 3.2, 0.0, (), FinalReason.FINALIZE), asked, timing=None), "answers no step"


def test_stable_words_are_reported_only_on_request() -> None:
    asked = RAW + "&stable_words=true"
    assert frame(Partial(0, 3.2, 1.96, WORDS, 1), asked)["tutti"] == {"stable_words": 1}
    assert frame(Final(0, 3.2, 1.96, WORDS, FinalReason.CLOSE), asked, timing=None)["tutti"] == {"stable_words": 2}
    merged = frame(Final(0, 0.0, 1.0, SPOKEN, FinalReason.ENDPOINT), asked + "&numerals=true")
    assert merged["tutti"]["stable_words"] == len(merged["channel"]["alternatives"][0]["words"]) == 2


def test_the_delay_of_an_endpoint_is_reported_with_the_step() -> None:
    asked = RAW + "&step_results=true"
    assert frame(Final(0, 3.2, 1.96, WORDS, FinalReason.ENDPOINT), asked)["tutti"]["endpoint_delay_ms"] == 600.0
    assert "endpoint_delay_ms" not in frame(Final(0, 3.2, 1.96, WORDS, FinalReason.FINALIZE), asked)["tutti"]
    assert "endpoint_delay_ms" not in frame(Final(0, 3.2, 1.96, (), FinalReason.ENDPOINT), asked)["tutti"]


def test_frames_of_speech_starts_gaps_and_errors() -> None:
    assert frame(SpeechStarted(0, 3.3), RAW + "&vad_events=true") == {
        "type": "SpeechStarted",
        "channel": [0, 1],
        "timestamp": 3.3,
    }
    assert frame(UtteranceGap(0, 4.56)) == {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 4.56}
    assert frame(StreamBroken(ValueError("secret path"))) == {
        "type": "Error",
        "variant": "InternalError",
        "description": "recognition failed on this stream",
    }
    assert Projector(query(RAW), 1, "r", "c", CARD).frame(SpeechStarted(0, 3.3)) is None


def test_metadata_names_the_model_only_if_there_was_audio() -> None:
    found = frame(Closed(CloseReason.CLOSE_STREAM, 12.4))
    assert found == {
        "type": "Metadata",
        "transaction_key": "deprecated",
        "request_id": "req-1",
        "sha256": "incomplete",
        "created": "2026-11-20T08:00:00.000Z",
        "duration": 12.4,
        "channels": 1,
        "models": [CARD.uuid],
        "model_info": {CARD.uuid: {"name": "small", "version": "3", "arch": "ctc-rnn"}},
    }
    silent = frame(Closed(CloseReason.IDLE, 0.0))
    assert "models" not in silent
    assert "model_info" not in silent


def test_errors_and_configure_answers() -> None:
    projector = Projector(query(RAW), 1, "req-1", "now", CARD)
    complaint = json.loads(projector.complaint("unknown message type", "x" * 10_000))
    assert complaint == {
        "type": "Error",
        "variant": "SchemaError",
        "description": "unknown message type",
        "message": "x" * MAX_ECHO,
    }
    success = {"type": "ConfigureSuccess", "request_id": "req-1", "keyterms": ["foo"]}
    assert json.loads(projector.configured(["foo"])) == success
    failure = {"type": "ConfigureFailure", "request_id": "req-1", "code": "CODE", "description": "why"}
    assert json.loads(projector.not_configured("CODE", "why")) == failure


def test_the_uuid_of_a_model_depends_on_its_weights() -> None:
    assert ModelCard.of("a", "1", "00ff").uuid == ModelCard.of("b", "2", "00ff").uuid
    assert ModelCard.of("a", "1", "00ff").uuid != ModelCard.of("a", "1", "00fe").uuid


def test_the_answer_to_an_upload_has_every_field() -> None:
    transcripts = [format_words(WORDS), format_words(())]
    payload = recording_answer(
        transcripts, request_id="r", sha256="ab", created="now", duration_s=12.4, model=CARD, punctuated=False
    )
    found = json.loads(payload)
    assert found["metadata"]["channels"] == 2
    assert found["metadata"]["model_info"][CARD.uuid]["name"] == "small"
    assert [c["alternatives"][0]["transcript"] for c in found["results"]["channels"]] == ["turn down", ""]
    assert found["results"]["utterances"] == []


def test_close_reasons_fit_into_a_close_frame_and_1001_is_never_used() -> None:
    for close in CLOSES.values():
        assert len(close.reason.encode()) <= 123
        assert close.code != 1001
    assert "did not receive audio data" in CLOSES[CloseReason.IDLE].reason
    assert "within the timeout window" in CLOSES[CloseReason.IDLE].reason
    assert "net0001" in CLOSES[CloseReason.IDLE].reason
