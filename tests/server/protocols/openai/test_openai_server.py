"""OpenAI's interfaces on real sockets: Realtime sessions, uploads in every format, refusals in OpenAI's form."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.audio.pcm import PCM
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.shouting import ShoutingDecoder
from tests.support.servers.spelling import poison, silence, spell
from tests.support.servers.uploaded import encoded
from tests.support.servers.wavering import WaveringDecoder

Start = Callable[..., LiveServer]
Json = dict[str, Any]
RATE = 24_000


def dial(server: LiveServer, query: str = "intent=transcription", **options: Any) -> ClientConnection:
    url = f"ws://{server.host}/v1/realtime?{query}"
    return connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S, **options)


def tell(socket: ClientConnection, type_: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": type_, **fields}))


def append(socket: ClientConnection, audio: PCM) -> None:
    for start in range(0, len(audio), 2_400):
        chunk = base64.b64encode(audio[start : start + 2_400].tobytes()).decode()
        tell(socket, "input_audio_buffer.append", audio=chunk)


def until(socket: ClientConnection, ending: str) -> list[Json]:
    """Return the events up to the first of this kind."""
    events: list[Json] = []
    while not events or not events[-1]["type"].endswith(ending):
        events.append(json.loads(socket.recv(timeout=WAIT_S)))
    return events


def manual(socket: ClientConnection) -> None:
    session = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    tell(socket, "session.update", session=session)
    assert [event["type"] for event in until(socket, "updated")] == ["session.created", "session.updated"]


def test_commits_are_answered_by_transcripts(live_server: Start) -> None:
    server = live_server()
    with dial(server) as socket:
        manual(socket)
        for text in ("hello there", "general"):
            append(socket, spell(text, RATE))
            tell(socket, "input_audio_buffer.commit")
            events = until(socket, ".completed")
            kinds = [event["type"].rpartition(".")[2] for event in events]
            assert kinds.count("committed") == kinds.count("completed") == 1
            assert set(kinds) == {"delta", "committed", "completed"}
            assert "".join(e["delta"] for e in events if "delta" in e) == events[-1]["transcript"] == text
            assert len({event["item_id"] for event in events}) == 1
            assert events[-1]["usage"]["seconds"] == pytest.approx(len(spell(text)) / 16_000, abs=0.05)
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="openai"}') == 1


def test_a_transcript_has_the_words_of_the_second_pass_and_equals_its_deltas(live_server: Start) -> None:
    server = live_server(decoder=ShoutingDecoder())
    with dial(server) as socket:
        manual(socket)
        append(socket, spell("hello there", RATE))
        tell(socket, "input_audio_buffer.commit")
        events = until(socket, ".completed")
    assert events[-1]["transcript"] == "".join(e["delta"] for e in events if "delta" in e) == "hello THERE"
    form = {"file": ("a.wav", encoded(spell("hello there"), "wav"))}
    assert server.http.post("/v1/audio/transcriptions", files=form).json()["text"] == "Hello THERE."


def test_silence_ends_turns(live_server: Start) -> None:
    server = live_server()
    with dial(server) as socket:
        append(
            socket, np.concatenate([spell("hello", RATE), silence(1.0, RATE), spell("you", RATE), silence(1.0, RATE)])
        )
        events = until(socket, ".completed") + until(socket, ".completed")
    assert [event["type"].rpartition(".")[2] for event in events if "delta" not in event] == [
        "created",
        *(["speech_started", "speech_stopped", "committed", "completed"] * 2),
    ]
    assert [event["transcript"] for event in events if "transcript" in event] == ["hello", "you"]


def test_a_longer_silence_duration_joins_turns(live_server: Start) -> None:
    server = live_server()
    with dial(server) as socket:
        turns = {"type": "server_vad", "silence_duration_ms": 1_500}
        session = {"type": "transcription", "audio": {"input": {"turn_detection": turns}}}
        tell(socket, "session.update", session=session)
        said = [spell("hello", RATE), silence(1.0, RATE), spell(" you", RATE), silence(2.0, RATE), spell("too", RATE)]
        append(socket, np.concatenate(said))
        assert until(socket, ".completed")[-1]["transcript"] == "hello you"


def test_clear_discards_audio(live_server: Start) -> None:
    server = live_server()
    with dial(server) as socket:
        manual(socket)
        append(socket, spell("gone", RATE))
        tell(socket, "input_audio_buffer.clear")
        append(socket, spell("kept", RATE))
        tell(socket, "input_audio_buffer.commit")
        assert until(socket, ".completed")[-1]["transcript"] == "kept"


def test_the_rare_words_of_a_prompt_are_key_terms(live_server: Start) -> None:
    server = live_server(decoder=WaveringDecoder())  # to which all words are rare; it writes the key terms of a word
    with dial(server) as socket:
        manual(socket)
        transcription = {"model": "any", "keywords": ["own"], "prompt": "Ms. Kowalczyk!"}
        session = {"type": "transcription", "audio": {"input": {"transcription": transcription}}}
        tell(socket, "session.update", session=session)
        append(socket, np.concatenate([spell("one ", RATE), silence(2.0, RATE)]))
        tell(socket, "input_audio_buffer.commit")
        assert until(socket, ".completed")[-1]["transcript"].startswith("one+kowalczyk+own")


def test_keywords_need_a_decoder_with_key_terms(live_server: Start) -> None:
    server = live_server()  # decodes greedily
    with dial(server) as socket:
        transcription = {"model": "any", "keywords": ["porch"]}
        session = {"type": "transcription", "audio": {"input": {"transcription": transcription}}}
        tell(socket, "session.update", session=session)
        events = until(socket, "session.updated")
        assert [event["type"] for event in events] == ["session.created", "error", "session.updated"]


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"Authorization": "Bearer k3y"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.k3y", "openai-beta.realtime-v1"]},
    ],
)
def test_keys_are_read_from_header_and_subprotocol(live_server: Start, options: Any) -> None:
    server = live_server(api_keys=["k3y"])
    with dial(server, **options) as socket:
        assert socket.subprotocol == ("realtime" if "subprotocols" in options else None)
        assert until(socket, "created")
    with pytest.raises(InvalidStatus) as refused:
        dial(server)
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("query", "param"), [("model=gpt-realtime", "intent"), ("intent=transcription&model=x", "model")]
)
def test_other_intents_and_unknown_models_are_refused(live_server: Start, query: str, param: str) -> None:
    server = live_server(strict_models=True)
    with pytest.raises(InvalidStatus) as refused:
        dial(server, query)
    assert refused.value.response.status_code == 400
    assert json.loads(refused.value.response.body)["error"]["param"] == param


def test_a_full_server_refuses_with_503(live_server: Start) -> None:
    server = live_server(max_streams=1)
    with dial(server) as socket:
        until(socket, "created")
        with pytest.raises(InvalidStatus) as refused:
            dial(server)
        assert refused.value.response.status_code == 503
        assert "Retry-After" in refused.value.response.headers


def test_a_drain_completes_pending_items_and_closes_with_1012(live_server: Start) -> None:
    server = live_server(drain_timeout_s=0.0, drain_spread_s=0.0)
    with dial(server) as socket:
        append(socket, spell("half a sen", RATE))
        until(socket, ".delta")
        server.server.handle_exit(15, None)
        events = until(socket, ".completed")
        assert [event["transcript"] for event in events if "transcript" in event] == ["half a sen"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    server.join()


def test_a_failure_is_an_event_and_closes_with_1011(live_server: Start) -> None:
    server = live_server()
    with dial(server, "intent=transcription") as socket:
        session = {"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}}
        tell(socket, "session.update", session=session)
        append(socket, poison())
        events = until(socket, "error")
        assert events[-1]["error"]["type"] == "server_error"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


# Uploads

SPOKEN = np.concatenate([spell("hello there"), silence(1.2), spell("general")])
PATH = "/v1/audio/transcriptions"


def post(server: LiveServer, audio: PCM = SPOKEN, key: str = "", **data: Any) -> httpx.Response:
    files = {"file": ("speech.wav", encoded(audio, "WAV"), "audio/wav")}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.http.post(PATH, data={"model": "whisper-1"} | data, files=files, headers=headers)


def test_json_has_text_and_duration(live_server: Start) -> None:
    answer = post(live_server())
    assert answer.status_code == 200
    usage = {"type": "duration", "seconds": round(len(SPOKEN) / 16_000, 3)}
    assert answer.json() == {"text": "Hello, there. General.", "usage": usage}


def test_text_and_subtitles(live_server: Start) -> None:
    server = live_server()
    text = post(server, response_format="text")
    assert (text.text, text.headers["content-type"]) == ("Hello, there. General.\n", "text/plain; charset=utf-8")
    vtt = post(server, response_format="vtt").text.splitlines()
    assert vtt[0] == "WEBVTT"
    assert [line for line in vtt if "-->" not in line and line][1:] == ["Hello, there.", "General."]
    srt = post(server, response_format="srt").text
    assert srt.startswith("1\n00:00:00,")
    assert "\n2\n00:00:0" in srt


def test_verbose_json_has_segments_and_words(live_server: Start) -> None:
    server = live_server()
    plain = post(server, response_format="verbose_json").json()
    again = post(server, response_format="verbose_json", language=plain["language"]).json()
    assert (plain["language"], again) == ("english", plain)
    assert [part["text"] for part in plain["segments"]] == ["Hello, there.", "General."]
    assert "words" not in plain
    both = post(server, response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert [word["word"] for word in both["words"]] == ["Hello,", "there.", "General."]
    assert both["segments"] == plain["segments"]
    assert both["segments"][1]["start"] == both["words"][2]["start"] > both["words"][1]["end"]
    assert both["duration"] == pytest.approx(len(SPOKEN) / 16_000, abs=1e-3)


def events_of(answer: httpx.Response) -> Iterator[Json]:
    for block in answer.text.split("\n\n"):
        if block:
            yield json.loads(block.removeprefix("data: "))


def test_stream_sends_deltas_and_the_whole_text(live_server: Start) -> None:
    server = live_server(max_uploads=1)
    for _ in range(2):  # the upload place is released
        answer = post(server, stream="true")
        assert answer.headers["content-type"].startswith("text/event-stream")
        *deltas, done = events_of(answer)
        assert [delta["delta"] for delta in deltas] == ["Hello, there.", " General."]
        assert {delta["type"] for delta in deltas} == {"transcript.text.delta"}
        assert (done["type"], done["text"]) == ("transcript.text.done", "Hello, there. General.")


def test_a_failure_in_a_stream_of_events_is_the_last_event(live_server: Start) -> None:
    server = live_server(max_uploads=1)
    *_, last = events_of(post(server, poison(), stream="true"))
    assert last["error"]["type"] == "server_error"
    assert post(server).status_code == 200


def test_stereo_is_mixed(live_server: Start) -> None:
    server = live_server()
    assert post(server, np.stack([SPOKEN, SPOKEN], axis=1)).json()["text"] == "Hello, there. General."


def test_uploads_need_a_key(live_server: Start) -> None:
    server = live_server(api_keys=["k3y"])
    assert post(server, key="k3y").status_code == 200
    refused = post(server, key="wrong")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.headers["x-request-id"]


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities"),
        ({"model": "unheard-of"}, "model"),
        ({"x": "y" * 70_000}, "x"),
        ({"many": ["x"] * 300}, "many"),
    ],
)
def test_invalid_options_are_refused(live_server: Start, data: Json, param: str | None) -> None:
    answer = post(live_server(strict_models=True, model_aliases={"whisper-1": "default"}), **data)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--b\r\nnonsense"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nRIFF',
        ),
        ("multipart/form-data; boundary=" + "b" * 300, b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"X-Y: z\r\n" * 99),
    ],
)
def test_a_body_that_is_not_a_form_is_refused(live_server: Start, kind: str, body: bytes) -> None:
    answer = live_server().http.post(PATH, content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_file_that_is_not_a_recording_is_refused(live_server: Start) -> None:
    files = {"file": ("speech.wav", b"RIFF nonsense", "audio/wav")}
    answer = live_server().http.post(PATH, files=files)
    assert answer.status_code == 400
    assert "not a WAV" in answer.json()["error"]["message"]
