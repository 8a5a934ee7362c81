"""OpenAI's Realtime transcription without a socket: items, deltas that only append, commits, settings, errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audio.pcm import Resampler
from server.errors import CloseReason
from server.models.selection import ModelNames
from server.protocols.openai.items import MAX_CHARACTERS
from server.protocols.openai.messages import COMPLETED, DELTA
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import MAX_PROMPT, SessionSettings
from server.recognition.events import Closed, Final, FinalReason, Partial, SpeechStarted, StreamBroken
from server.recognition.messages import Endpoint
from server.streaming.adapter import Bias, Flush
from tests.support.servers.adapters import RATE, audio_of, frames_of, noise, other_actions, words

MODELS = ModelNames({"tiny": ("en",)}, {"nova-3": "default"})
MANUAL = {"turn_detection": None}
COMMITTED, STARTED, STOPPED = (f"input_audio_buffer.{it}" for it in ("committed", "speech_started", "speech_stopped"))
Json = dict[str, Any]


class Talk:
    """A session and the events that its client received."""

    def __init__(self, **audio_input: Any) -> None:
        self.adapter = RealtimeAdapter("s1", SessionSettings("tiny"), MODELS, model_rate=RATE, min_silence_ms=400.0)
        self.received: list[Json] = []
        self.actions: list[Any] = []
        self.do(self.adapter.opened())
        if audio_input:
            self.send("session.update", session=update(**audio_input))
            assert self.received[-1]["type"] == "session.updated"

    def do(self, actions: Iterable[Any]) -> list[Json]:
        done = list(actions)
        self.actions += done
        self.received += frames_of(done)
        return frames_of(done)

    def send(self, type_: str, **fields: Any) -> list[Json]:
        return self.do(self.adapter.text(json.dumps({"type": type_, **fields})))

    def append(self, data: bytes) -> list[Json]:
        return self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def commit(self) -> list[Json]:
        return self.send("input_audio_buffer.commit")

    def say(self, *events: Any) -> list[Json]:
        return [frame for event in events for frame in self.do(self.adapter.event(event, None))]

    def text_of(self, item: str) -> str:
        return "".join(f["delta"] for f in self.received if f["type"] == DELTA and f["item_id"] == item)


def update(**audio_input: Any) -> Json:
    return {"type": "transcription", "audio": {"input": audio_input}}


def partial(text: str, stable: int) -> Partial:
    return Partial(0, 0.0, 1.0, words(text), stable)


def final(text: str, reason: FinalReason = FinalReason.ENDPOINT, start_s: float = 0.0) -> Final:
    return Final(0, start_s, 1.0, words(text, start_s), reason)


def kinds(frames: list[Json]) -> list[str]:
    return [frame["type"].rpartition(".")[2] for frame in frames]


SECOND = noise(1.0, 24_000).tobytes()


def test_the_first_event_describes_the_session() -> None:
    talk = Talk()
    (created,) = talk.received
    assert created["type"] == "session.created"
    assert created["session"]["type"] == "transcription"
    assert created["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert created["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500


def test_silence_ends_a_turn() -> None:
    talk = Talk()
    talk.append(SECOND)
    frames = talk.say(
        SpeechStarted(0, 0.25), partial("hello", 0), partial("hello there", 1), partial("hello there", 1),
        partial("hello there now", 2), final("hello there now"),
    )  # fmt: skip
    assert kinds(frames) == ["speech_started", "delta", "delta", "delta", "speech_stopped", "committed", "completed"]
    assert [f["delta"] for f in frames if f["type"] == DELTA] == ["hello", " there", " now"]
    assert len({f["item_id"] for f in frames}) == 1
    assert frames[0]["audio_start_ms"] == 250
    assert frames[4]["audio_end_ms"] == 1_000
    assert frames[5]["previous_item_id"] is None
    assert frames[6]["transcript"] == "hello there now"
    assert frames[6]["usage"] == {"type": "duration", "seconds": 1.0}
    second = talk.say(SpeechStarted(0, 1.2), final("again", start_s=1.0))
    assert kinds(second) == ["speech_started", "delta", "speech_stopped", "committed", "completed"]
    assert second[3]["previous_item_id"] == frames[0]["item_id"] != second[3]["item_id"]
    assert second[4]["transcript"] == "again"
    assert len({f["event_id"] for f in talk.received}) == len(talk.received)


def test_silence_without_speech_is_not_a_turn() -> None:
    assert Talk().say(final("")) == []


@pytest.mark.parametrize("began_s", [0.95, 1.1])
def test_an_end_of_silence_does_not_end_a_turn_that_has_just_begun(began_s: float) -> None:
    talk = Talk()
    talk.append(SECOND)
    assert kinds(talk.say(SpeechStarted(0, began_s), final(""))) == ["speech_started"]
    frames = talk.say(final("hello", start_s=1.0))
    assert kinds(frames) == ["delta", "speech_stopped", "committed", "completed"]
    assert {frame["item_id"] for frame in frames} == {talk.received[1]["item_id"]}
    noise = talk.say(SpeechStarted(0, 1.98), final("", start_s=2.0))
    assert kinds(noise) == ["speech_started", "speech_stopped", "committed", "completed"]
    assert (noise[0]["audio_start_ms"], noise[1]["audio_end_ms"]) == (2_000, 3_000)


def test_without_turn_detection_segments_stay_in_one_item_until_the_commit() -> None:
    talk = Talk(**MANUAL)
    talk.append(SECOND)
    frames = talk.say(SpeechStarted(0, 0.1), partial("one two", 1), final("one two"), SpeechStarted(0, 1.1))
    assert kinds(frames) == ["delta", "delta"]
    talk.say(partial("three four", 1))
    talk.actions.clear()
    (committed,) = talk.commit()
    assert other_actions(talk.actions) == [Flush()]
    assert committed["item_id"] == frames[0]["item_id"]
    done = talk.say(final("three four", FinalReason.FINALIZE, 1.0))
    assert kinds(done) == ["delta", "completed"]
    assert done[-1]["transcript"] == "one two three four" == talk.text_of(committed["item_id"])
    assert done[-1]["usage"]["seconds"] == 2.0


def test_an_endpoint_recognized_after_a_commit_belongs_to_the_committed_item() -> None:
    talk = Talk()
    talk.append(SECOND)
    talk.say(SpeechStarted(0, 0.1))
    assert kinds(talk.commit()) == ["speech_stopped", "committed"]
    frames = talk.say(final("one"), final("two", FinalReason.FINALIZE, 1.0))
    assert kinds(frames) == ["delta", "delta", "completed"]
    assert frames[-1]["transcript"] == "one two"


@pytest.mark.parametrize(
    ("type_", "session", "answer", "then"),
    [
        ("input_audio_buffer.commit", {}, "committed", ["speech_started", "delta"]),
        ("input_audio_buffer.clear", {}, "cleared", ["speech_started", "delta"]),
        ("session.update", update(turn_detection=None), "updated", ["delta"]),
    ],
)
def test_speech_ends_in_the_midst_of_it_by_an_event(type_: str, session: Json, answer: str, then: list[str]) -> None:
    talk = Talk()
    talk.append(SECOND)
    started, _ = talk.say(SpeechStarted(0, 0.25), partial("hello there", 1))
    stopped, _ = frames = talk.send(type_, session=session) if session else talk.send(type_)
    assert kinds(frames) == ["speech_stopped", answer]
    assert (stopped["item_id"], stopped["audio_end_ms"]) == (started["item_id"], 1_000)
    talk.say(final("hello there", FinalReason.MAX_LEN if session else FinalReason.FINALIZE))
    assert kinds(talk.say(partial("now", 1))) == then


def test_a_commit_without_audio_is_an_error_and_makes_no_item() -> None:
    talk = Talk(**MANUAL)
    talk.append(noise(0.05, 24_000).tobytes())
    talk.actions.clear()
    (error,) = talk.send("input_audio_buffer.commit", event_id="mine")
    assert (error["type"], error["error"]["code"]) == ("error", "input_audio_buffer_commit_empty")
    assert error["error"]["event_id"] == "mine"
    assert not other_actions(talk.actions)
    talk.append(SECOND)
    assert kinds(talk.commit()) == ["committed"]
    assert kinds(talk.commit()) == ["error"]


def test_clear_discards_audio_that_was_not_committed() -> None:
    talk = Talk(**MANUAL)
    talk.append(SECOND)
    talk.say(partial("gone", 1))
    assert kinds(talk.send("input_audio_buffer.clear")) == ["cleared"]
    assert talk.say(partial("gone too", 2), final("gone too", FinalReason.FINALIZE)) == []
    talk.append(SECOND)
    talk.say(partial("kept", 1))
    talk.commit()
    assert talk.say(final("kept", FinalReason.FINALIZE, 1.0))[-1]["transcript"] == "kept"


def test_an_item_that_is_never_committed_ends_at_its_limit() -> None:
    talk = Talk(**MANUAL)
    talk.append(SECOND)
    frames = talk.say(final("x" * (MAX_CHARACTERS + 1), FinalReason.MAX_LEN))
    assert kinds(frames) == ["delta", "committed", "completed"]


HAPPENINGS = st.sampled_from(["partial", "endpoint", "commit", "clear", "max_len", "voice", "turns"])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), HAPPENINGS), max_size=20), st.booleans())
def test_deltas_add_up_to_the_transcript(script: list[tuple[int, int, str]], manual: bool) -> None:
    talk = Talk(**(MANUAL if manual else {}))
    owed, shown = 0, 0
    talk.append(SECOND)
    for wanted, stable, what in script:
        count = max(wanted, shown)
        text = " ".join(f"w{n}" for n in range(count))
        if what == "partial":
            shown = max(shown, min(stable, count))
            talk.say(partial(text, shown))
        elif what in ("commit", "clear"):
            talk.append(SECOND)
            talk.send(f"input_audio_buffer.{what}")
            owed += 1
        elif what == "voice":
            talk.say(SpeechStarted(0, 0.5))
        elif what == "turns":
            talk.send("session.update", session=update(turn_detection={"type": "server_vad"} if stable % 2 else None))
        else:
            talk.say(final(text, FinalReason(what)))
            shown = 0
        if owed and stable == 0:
            talk.say(final(text, FinalReason.FINALIZE))
            owed, shown = owed - 1, 0
    talk.say(Closed(CloseReason.DRAIN, 9.0))
    completed = [frame for frame in talk.received if frame["type"] == COMPLETED]
    assert all(frame["transcript"] == talk.text_of(frame["item_id"]) for frame in completed)
    ids = [frame["item_id"] for frame in completed]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    committed = [frame for frame in talk.received if frame["type"] == COMMITTED]
    assert {frame["item_id"] for frame in committed} == set(ids), "every committed item is completed once"
    links = [None, *(frame["item_id"] for frame in committed)]
    assert [frame["previous_item_id"] for frame in committed] == links[:-1]
    speech = [(frame["type"], frame["item_id"]) for frame in talk.received if frame["type"] in (STARTED, STOPPED)]
    assert speech == [(kind, item) for _, item in speech[::2] for kind in (STARTED, STOPPED)], "an end for each start"


def test_an_end_by_the_server_completes_pending_items() -> None:
    talk = Talk()
    talk.append(SECOND)
    talk.say(SpeechStarted(0, 0.1), partial("half a", 1))
    frames = talk.say(final("half a", FinalReason.CLOSE), Closed(CloseReason.DRAIN, 1.0))
    assert kinds(frames) == ["delta", "speech_stopped", "committed", "completed"], (
        "no error, or LiveKit does not reconnect"
    )
    waiting = Talk(**MANUAL)
    waiting.append(SECOND)
    waiting.commit()
    assert kinds(waiting.say(Closed(CloseReason.IDLE, 1.0))) == ["completed", "error"]


def test_a_failure_names_the_item() -> None:
    talk = Talk()
    talk.say(SpeechStarted(0, 0.1))
    frames = talk.say(StreamBroken(RuntimeError("secret")))
    assert kinds(frames) == ["failed", "error"]
    assert "secret" not in json.dumps(frames)


@given(st.lists(st.integers(0, 4_800), max_size=8))
def test_audio_does_not_depend_on_how_it_is_split(cuts: list[int]) -> None:
    data = noise(0.1, 24_000).tobytes()
    talk = Talk(**MANUAL)
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        talk.append(data[start:end])
    talk.commit()
    resampler = Resampler(24_000, RATE)
    whole = np.concatenate([resampler.resample(np.frombuffer(data, "<i2")), resampler.flush()])
    assert audio_of(talk.actions).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("form", "seconds"),
    [({"type": "audio/pcmu"}, 0.25), ({"type": "audio/pcma"}, 0.25), ({"type": "audio/pcm", "rate": 8_000}, 0.125)],
)
def test_telephone_codecs_and_other_rates_are_decoded(form: Json, seconds: float) -> None:
    talk = Talk(format=form, **MANUAL)
    assert talk.received[-1]["session"]["audio"]["input"]["format"] == form
    talk.append(bytes(2_000))
    talk.commit()
    assert len(audio_of(talk.actions)) == pytest.approx(seconds * RATE, abs=2)


def test_omitted_settings_stay_unchanged() -> None:
    talk = Talk(**MANUAL)
    (updated,) = talk.send("session.update", session=update(transcription={"model": "nova-3", "language": "en"}))
    audio = updated["session"]["audio"]["input"]
    assert audio["turn_detection"] is None
    assert audio["transcription"] == {"model": "nova-3", "language": "en"}
    (updated,) = talk.send("session.update", session=update(turn_detection={"type": "server_vad"}))
    assert updated["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500
    assert updated["session"]["audio"]["input"]["transcription"]["model"] == "nova-3"


def test_the_silence_that_ends_a_turn_is_at_least_the_operators_minimum() -> None:
    talk = Talk()
    for asked_ms, told_ms in ((900, 900), (200, 400), (None, 500)):
        talk.actions.clear()
        turns = {"type": "server_vad", "silence_duration_ms": asked_ms}
        (updated,) = talk.send("session.update", session=update(turn_detection=turns))
        assert other_actions(talk.actions) == [Endpoint(asked_ms or 500.0)]
        assert updated["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == told_ms
    talk.actions.clear()
    talk.send("session.update", session=update(turn_detection={"type": "server_vad"}))
    assert other_actions(talk.actions) == [], "nothing changed"


@pytest.mark.parametrize(
    ("field", "value", "bias"),
    [
        ("keywords", ["porch fan", "tutti"], Bias(("porch fan", "tutti"))),
        ("prompt", "Am I speaking to Ms. Kowalczyk?", Bias((), "Am I speaking to Ms. Kowalczyk?")),
    ],
)
def test_key_terms_are_passed_on_and_a_refusal_is_an_error(field: str, value: object, bias: Bias) -> None:
    talk = Talk()
    for sent, done in ((value, [bias]), ("x" * (MAX_PROMPT + 1), [])):
        talk.actions.clear()
        talk.send("session.update", session=update(transcription={field: sent}))
        assert other_actions(talk.actions) == done
    (error,) = talk.do(talk.adapter.bias_refused("too many"))
    assert error["error"]["param"] == f"session.audio.input.transcription.{field}"


def test_binary_frames_are_an_error() -> None:
    talk = Talk()
    assert kinds(talk.do(talk.adapter.binary(b"\0\0"))) == ["error"]
