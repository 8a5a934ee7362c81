"""Every field of a Realtime session's events: read, listed as ignored, or refused by its path."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from server.models.selection import ModelNames
from server.protocols.openai.messages import MAX_AUDIO_BYTES, MAX_EVENT_BYTES
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import SESSION, FieldKind, SessionSettings, Tree
from server.recognition.messages import Endpoint
from server.streaming.adapter import Bias, Switch
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.adapters import RATE, audio_of, frames_of, other_actions
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
Json = dict[str, Any]


def adapter(*, lenient: bool = False) -> RealtimeAdapter:
    names = ModelNames({"english": ("en",), "iberia": ("es", "pt")}, {"*": "default"})
    return RealtimeAdapter(
        "s1", SessionSettings("english"), names, model_rate=RATE, min_silence_ms=400.0, lenient=lenient
    )


def send(talk: RealtimeAdapter, event: Json) -> tuple[list[Json], list[Any]]:
    """Return the frames and other actions that answer an event."""
    actions = list(talk.text(json.dumps(event)))
    return frames_of(actions), other_actions(actions)


def update(session: Json, *, lenient: bool = False) -> Json:
    """Return the only frame that answers an update of a new session."""
    (frame,), _ = send(adapter(lenient=lenient), {"type": "session.update", "session": session})
    return frame


def of_input(**fields: Any) -> Json:
    return {"type": "transcription", "audio": {"input": fields}}


def nested(path: str, value: Any) -> Json:
    """Return a session in which the field at a path has a value."""
    _, *parents, name = path.split(".")
    session: Json = {name: value}
    if path.startswith("session.audio.input.turn_detection."):
        session = {"type": "server_vad"} | session
    for parent in reversed(parents):
        session = {parent: session}
    return session


def paths(tree: Tree = SESSION, path: str = "session") -> Iterator[tuple[str, FieldKind | None]]:
    """Return every field with its kind, None for an object."""
    for name, below in tree.items():
        here = f"{path}.{name}"
        if isinstance(below, FieldKind):
            yield here, below
        else:
            yield here, None
            yield from paths(below, here)


def test_every_unknown_field_of_an_update_is_named_and_nothing_changes() -> None:
    talk = adapter()
    session = of_input(format={"type": "audio/pcmu", "bits": 8}, vad=1) | {"voice": "alloy"}
    (error,), others = send(talk, {"type": "session.update", "event_id": "mine", "session": session})
    for path in ("session.audio.input.format.bits", "session.audio.input.vad", "session.voice"):
        assert path in error["error"]["message"]
    assert error["error"]["event_id"] == "mine"
    assert not others
    (updated,), _ = send(talk, {"type": "session.update", "session": {}})
    assert updated["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}


UNSUPPORTED = {
    "session.include": ["item.input_audio_transcription.logprobs"],
    "session.audio.input.turn_detection.idle_timeout_ms": 5_000,
    "session.audio.input.transcription.language": "multi",
    "session.audio.input.transcription.model": "gpt-4o-transcribe-diarize",
}


def test_the_unsupported_fields_are_those_of_this_test() -> None:
    values = {"type", "language", "model"}  # some of their values are unsupported
    unsupported = {path for path, kind in paths() if kind is FieldKind.UNSUPPORTED}
    assert unsupported == {path for path in UNSUPPORTED if path.rpartition(".")[2] not in values}


@pytest.mark.parametrize("path", UNSUPPORTED)
def test_an_unsupported_field_is_accepted_by_a_lenient_server(path: str) -> None:
    assert update(nested(path, UNSUPPORTED[path]), lenient=True)["type"] == "session.updated"
    if path.rpartition(".")[2] not in ("language", "model"):
        assert update(nested(path, None))["type"] == "session.updated", "null requests nothing"


def test_semantic_vad_is_echoed_with_its_eagerness() -> None:
    for given, echoed in (({}, "auto"), ({"eagerness": None}, "auto"), ({"eagerness": "low"}, "low")):
        session = update(of_input(turn_detection={"type": "semantic_vad", **given}))["session"]
        assert session["audio"]["input"]["turn_detection"] == {"type": "semantic_vad", "eagerness": echoed}
        assert "ignored_params" not in session


def test_the_eagerness_of_semantic_vad_is_the_score_that_ends_a_turn() -> None:
    talk = adapter()
    ends = {}
    for eagerness in ("high", "medium", "auto", "low"):
        turns = {"type": "semantic_vad", "eagerness": eagerness}
        _, actions = send(talk, {"type": "session.update", "session": of_input(turn_detection=turns)})
        for end in actions:
            ends[eagerness] = end.scored
    assert list(ends) == ["high", "medium", "low"], "auto is medium: nothing changes"
    for answer in (None, 0.1, 0.9):
        assert ends["high"].delay_s(answer) < ends["medium"].delay_s(answer) < ends["low"].delay_s(answer)
    _, (back,) = send(talk, {"type": "session.update", "session": of_input(turn_detection={"type": "server_vad"})})
    assert back == Endpoint(500.0)


HARMLESS = {
    "session.audio.input.turn_detection.threshold": 0.4,
    "session.audio.input.turn_detection.prefix_padding_ms": 600,
    "session.audio.input.turn_detection.create_response": True,
    "session.audio.input.turn_detection.interrupt_response": True,
    "session.audio.input.transcription.delay": "low",
    "session.audio.input.noise_reduction.type": "near_field",
    "session.audio.input.noise_reduction.strength": 0.5,
}


@pytest.mark.parametrize("path", HARMLESS)
def test_a_harmless_field_is_accepted_and_listed(path: str) -> None:
    assert set(HARMLESS) == {path for path, kind in paths() if kind is FieldKind.HARMLESS}
    assert update(nested(path, HARMLESS[path]))["session"]["ignored_params"] == [path]
    assert "ignored_params" not in update({})["session"]


def test_an_update_whose_keywords_are_refused_is_answered_with_those_in_force() -> None:
    talk = adapter()
    send(talk, {"type": "session.update", "session": of_input(transcription={"keywords": ["porch"]})})
    update_of = {"type": "session.update", "session": of_input(transcription={"keywords": ["x" * 99_999]})}
    frames: list[Any] = []
    for action in talk.text(json.dumps(update_of)):
        frames += frames_of([action]) or frames_of(talk.bias_refused("too long"))
    assert [frame["type"] for frame in frames] == ["error", "session.updated"]
    assert frames[1]["session"]["audio"]["input"]["transcription"]["keywords"] == ["porch"]


def test_a_list_of_languages_sets_the_language() -> None:
    """As livekit-plugins-openai 1.8.9 sends them by default for gpt-live-transcribe."""
    turns = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 600, "silence_duration_ms": 350}
    transcription = {"model": "gpt-live-transcribe", "languages": ["pt"], "keywords": ["porto"]}
    session = of_input(format={"type": "audio/pcm", "rate": 24_000}, transcription=transcription, turn_detection=turns)
    talk = adapter()
    frames, (switch,) = send(talk, {"type": "session.update", "session": session})
    assert not frames
    assert isinstance(switch, Switch)
    assert (switch.model, switch.language) == ("iberia", "pt")
    done = list(switch.done(RATE))
    assert Bias(("porto",)) in done
    transcription = frames_of(done)[0]["session"]["audio"]["input"]["transcription"]
    assert (transcription["language"], transcription["languages"]) == ("pt", ["pt"])
    (updated,), _ = send(
        talk, {"type": "session.update", "session": of_input(transcription={"languages": ["es", "pt"]})}
    )
    assert updated["session"]["audio"]["input"]["transcription"]["languages"] == ["es", "pt"]
    (updated,), _ = send(talk, {"type": "session.update", "session": of_input(transcription={"language": "es"})})
    assert "languages" not in updated["session"]["audio"]["input"]["transcription"]


# Large appends


def append(data: bytes) -> Json:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


def test_an_append_may_have_15_mebibytes() -> None:
    actions = adapter().text(json.dumps(append(bytes(MAX_AUDIO_BYTES))))
    assert len(audio_of(actions)) == pytest.approx(MAX_AUDIO_BYTES / 3, abs=400)


def test_an_append_of_minutes_is_recognized_completely_and_in_order(live_server: Start) -> None:
    audio = np.concatenate([spell("first "), silence(90.0), spell("last")])
    assert len(audio) * 2 > 2**20
    with WireStream(live_server(max_backlog_s=6.0), "openai") as stream:
        stream.send({"type": "session.update", "session": of_input(turn_detection=None)})
        stream.send(append(audio.tobytes()))
        assert stream.finish() == 1000
    assert stream.texts() == ["first last"]


def test_a_message_over_the_size_limit_gets_an_error_event_before_1009(live_server: Start) -> None:
    server = live_server()
    with WireStream(server, "openai") as stream:
        stream.send("x" * (MAX_EVENT_BYTES + 1))
        assert stream.rest()[0] == 1009
    error = stream.frames[-1]["error"]
    assert (error["param"], error["code"]) == ("audio", "invalid_value")
    server.wait_idle()


def test_a_drain_while_a_large_append_waits_closes_with_1012(live_server: Start) -> None:
    server = live_server(drain_timeout_s=0.0, max_backlog_s=3.0)
    with WireStream(server, "openai") as stream:
        stream.send(append(silence(400.0).tobytes()))
        stream.send(append(spell("never").tobytes()))
        server.server.handle_exit(15, None)
        assert stream.rest()[0] == 1012
    assert "error" not in [frame["type"] for frame in stream.frames]
    server.join()
