"""vosk-server's protocol without a socket: exactly one answer to each audio frame, in order."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audio.pcm import Resampler
from server.errors import CloseReason
from server.protocols.vosk.adapter import VoskAdapter, key_terms
from server.recognition.events import Closed, Final, FinalReason, Partial, SpeechStarted
from server.recognition.keyterms.keyterms import MAX_TERMS
from server.streaming.adapter import Bias, Finish, Flush, Skip
from tests.support.servers.adapters import RATE, audio_of, frames_of, noise, other_actions, words

AUDIO = noise(0.1).tobytes()
EOF, RESET = '{"eof" : 1}', '{"reset" : 1}'


def adapter(config: dict[str, object] | None = None) -> VoskAdapter:
    """Return an adapter whose client sends at the model's rate."""
    made = VoskAdapter(RATE)
    assert not list(made.opened())
    assert not frames_of(made.text(json.dumps({"config": {"sample_rate": RATE} | (config or {})}))), (
        "no answer to config"
    )
    return made


def final(text: str, reason: FinalReason = FinalReason.ENDPOINT, start_s: float = 0.0) -> Final:
    return Final(0, start_s, 1.0, words(text, start_s), reason)


def partial(text: str) -> Partial:
    return Partial(0, 0.0, 1.0, words(text), 0)


def test_every_audio_frame_is_answered_at_once_with_the_latest_text() -> None:
    vosk = adapter()
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": ""}]
    assert not list(vosk.event(SpeechStarted(0, 0.1), None))
    assert not list(vosk.event(partial("hello"), None)), "the server does not speak unasked"
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": "hello"}]
    vosk.event(partial("hello the"), None)
    vosk.event(partial("hello there"), None)
    assert frames_of(vosk.binary(b"")) == [{"partial": "hello there"}], "an empty frame is a frame"
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": "hello there"}]


def test_a_final_is_the_answer_of_the_next_frame_and_has_its_words() -> None:
    vosk = adapter()
    vosk.event(partial("so yes"), None)
    assert not list(vosk.event(final("so yes"), None))
    result = [
        {"conf": 0.9, "end": 0.1, "start": 0.0, "word": "so"},
        {"conf": 0.9, "end": 0.2, "start": 0.1, "word": "yes"},
    ]
    assert frames_of(vosk.binary(AUDIO)) == [{"text": "so yes", "result": result}]
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": ""}]


def test_finals_between_two_frames_are_joined_in_one_answer() -> None:
    vosk = adapter({"words": 0})
    vosk.event(final("one"), None)
    vosk.event(final("", FinalReason.ENDPOINT), None)
    vosk.event(final("two", FinalReason.MAX_LEN), None)
    vosk.event(partial("thr"), None)
    assert frames_of(vosk.binary(AUDIO)) == [{"text": "one two"}]
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": "thr"}]


def test_silence_gives_no_final() -> None:
    vosk = adapter()
    vosk.event(final(""), None)
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": ""}]


def test_reset_is_answered_when_the_text_is_complete_and_later_frames_after_it() -> None:
    vosk = adapter({"words": 0})
    vosk.event(final("one"), None)
    assert other_actions(vosk.text(RESET)) == [Flush()]
    assert not frames_of(vosk.binary(AUDIO))
    assert not frames_of(vosk.binary(AUDIO))
    assert other_actions(vosk.text(RESET)) == [Flush()]
    assert not frames_of(vosk.binary(AUDIO))
    vosk.event(partial("two"), None)
    assert frames_of(vosk.event(final("two", FinalReason.FINALIZE), None)) == [
        {"text": "one two"},
        {"partial": ""},
        {"partial": ""},
    ]
    assert frames_of(vosk.event(final("", FinalReason.FINALIZE), None)) == [{"text": ""}, {"partial": ""}]
    assert frames_of(vosk.binary(AUDIO)) == [{"partial": ""}], "nothing is owed any more"


def test_eof_is_answered_with_the_rest_of_the_text_even_if_empty() -> None:
    vosk = adapter({"words": 0})
    vosk.event(final("one"), None)
    assert other_actions(vosk.text(EOF)) == [Finish()]
    assert not list(vosk.event(final("two", FinalReason.CLOSE), None))
    assert frames_of(vosk.event(Closed(CloseReason.CLOSE_STREAM, 1.0), None)) == [{"text": "one two"}]
    silent = adapter()
    silent.text(EOF)
    assert frames_of(silent.event(Closed(CloseReason.CLOSE_STREAM, 0.0), None)) == [{"text": ""}]


@pytest.mark.parametrize("reason", [CloseReason.DRAIN, CloseReason.IDLE])
def test_an_end_by_the_server_sends_pending_text_and_no_empty_final(reason: CloseReason) -> None:
    vosk = adapter({"words": 0})
    assert not list(vosk.event(Closed(reason, 1.0), None))
    vosk.event(final("half", FinalReason.CLOSE), None)
    assert frames_of(vosk.event(Closed(reason, 1.0), None)) == [{"text": "half"}]


def test_max_alternatives_changes_the_form_of_finals() -> None:
    vosk = adapter({"max_alternatives": 3, "words": False})
    vosk.event(final("yes no"), None)
    assert frames_of(vosk.binary(AUDIO)) == [{"alternatives": [{"confidence": 0.9, "text": "yes no"}]}]


def test_phrases_are_key_terms_without_unk() -> None:
    vosk = VoskAdapter(RATE)
    grammar = ["turn on", "[unk]", "turn [unk] off", "", "word " * 21]
    bias, skip = other_actions(vosk.text(json.dumps({"config": {"phrase_list": grammar}})))
    assert bias == Bias(("turn on", "turn off"), hints=True)
    assert isinstance(skip, Skip)
    assert "1 of 5 phrases" in skip.why
    assert other_actions(vosk.text('{"config": {"phrase_list": ["yes", "[unk]"]}}')) == [Bias(("yes",), hints=True)]
    assert len(key_terms([f"w{n}" for n in range(5_000)])) == MAX_TERMS
    assert key_terms(["x" * 3_000, "short"]) == ("short",)


@pytest.mark.parametrize("rate", [16_000, "16000", 16000.0, "16000.000000"])
def test_the_sample_rate_is_read_as_number_or_text(rate: object) -> None:
    vosk = VoskAdapter(RATE)
    vosk.text(json.dumps({"config": {"sample_rate": rate}}))
    assert audio_of(vosk.binary(AUDIO)).tobytes() == AUDIO


@given(st.lists(st.integers(0, 1_600), max_size=12))
def test_resampling_does_not_depend_on_how_audio_is_split(cuts: list[int]) -> None:
    data = noise(0.1, 8_000).tobytes()
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    vosk = VoskAdapter(RATE)
    actions = [a for start, end in itertools.pairwise(edges) for a in vosk.binary(data[start:end])]
    actions += vosk.text(EOF)
    resampler = Resampler(8_000, RATE)
    whole = np.concatenate([resampler.resample(np.frombuffer(data, "<i2")), resampler.flush()])
    assert audio_of(actions).tobytes() == whole.tobytes()
    assert len(frames_of(actions)) == len(edges) - 1


def test_a_sample_rate_after_the_first_audio_is_ignored_and_counted() -> None:
    vosk = adapter()
    vosk.binary(AUDIO)
    assert vosk.text(f'{{"config":{{"sample_rate":{RATE}}}}}') == (), "it is that in force"
    assert vosk.text('{"config":{"sample_rate":8000}}') == (Skip("sample_rate: 8000 after audio at 16000 Hz"),)
    assert len(audio_of(vosk.binary(AUDIO))) * 2 == len(AUDIO)
