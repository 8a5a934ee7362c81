"""Recordings by POST: decoding on a thread, recognition at background priority, answers in Deepgram's form."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import numpy as np
import pytest

from server.protocols import uploads
from tests.support.audio.media_files import container
from tests.support.protocols.bare_http import LISTEN, dialed, rest, uploading
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]


@pytest.mark.parametrize(
    ("kind", "subtype", "rate", "content_type"),
    [
        ("WAV", "PCM_16", 16_000, "audio/wav"),
        ("FLAC", None, 16_000, "audio/x-anything; rate=1"),
        ("WAV", "FLOAT", 16_000, "application/octet-stream"),
        ("WAV", "PCM_16", 48_000, None),
    ],
)
def test_a_recording_is_transcribed_with_all_fields_for_any_content_type(
    live_server: Start, kind: str, subtype: str | None, rate: int, content_type: str | None
) -> None:
    server = live_server()
    audio = np.concatenate([spell("hello", rate), silence(3.0, rate), spell("world", rate)])
    body = encoded(audio if subtype != "FLOAT" else audio / 32_768, kind, rate, subtype)
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = server.http.post("/v1/listen?model=nova-3&keyterm=x", content=body, headers=headers)
    answer = response.json()
    assert response.status_code == 200
    assert said(answer) == "hello world" or said(answer) == "helloworld"  # no space was spelled
    assert answer["metadata"]["duration"] == pytest.approx(len(audio) / rate, abs=1e-3)
    assert answer["metadata"]["request_id"] == response.headers["dg-request-id"]
    assert response.headers["x-ignored-params"] == "keyterm"
    assert len(answer["metadata"]["sha256"]) == 64
    assert answer["metadata"]["models"] == list(answer["metadata"]["model_info"])
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="upload"}') == 1


@pytest.mark.parametrize("path", ["/v1/listen?encoding=linear16&sample_rate=16000", "/v1/audio/transcriptions"])
def test_a_compressed_body_is_refused_by_its_encoding(live_server: Start, path: str) -> None:
    """As raw audio it would be noise."""
    server, body = live_server(), gzip.compress(spell("hello").tobytes())
    for header in ("Content-Encoding: gzip", "Content-Encoding: br", "Transfer-Encoding: gzip, chunked"):
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if "chunked" in header else body
        size = "" if "chunked" in header else f"Content-Length: {len(body)}\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n{size}\r\n"
        with dialed(server) as bare:
            bare.sendall(head.encode() + framed)
            answer = rest(bare)
        name, _, coding = header.partition(": ")
        assert answer.startswith(b"HTTP/1.1 400")
        assert f"{name.lower()}: {coding!r} is not supported; send the body without compression".encode() in answer
    plain = server.http.post(path, content=spell("hello").tobytes(), headers={"Content-Encoding": "identity"})
    assert "content-encoding" not in plain.text


def test_a_long_recording_is_recognized_in_bounded_pieces(live_server: Start) -> None:
    server = live_server()
    text = " ".join(f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop") * 5
    answer = server.http.post("/v1/listen", content=encoded(spell(text), "FLAC")).json()
    assert said(answer) == text
    words = answer["results"]["channels"][0]["alternatives"][0]["words"]
    assert [w["start"] for w in words] == sorted(w["start"] for w in words)


def test_channels_are_mixed_down_or_recognized_separately(live_server: Start) -> None:
    server = live_server()
    body = encoded(np.stack([spell("left"), spell("rest")], axis=1), "WAV")
    apart = server.http.post("/v1/listen?multichannel=true", content=body).json()
    assert [said(apart, 0), said(apart, 1)] == ["left", "rest"]
    assert apart["metadata"]["channels"] == 2
    same = encoded(np.stack([spell("both"), spell("both")], axis=1), "WAV")
    assert said(server.http.post("/v1/listen", content=same).json()) == "both"


def test_raw_samples_need_an_encoding_in_the_query(live_server: Start) -> None:
    server = live_server()
    path = "/v1/listen?encoding=linear16&sample_rate=8000"
    answer = server.http.post(path, content=spell("raw", 8_000).tobytes() + b"\0").json()
    assert said(answer) == "raw"
    assert server.http.post(path, content=b"").status_code == 400


@pytest.mark.parametrize(("kind", "kept"), [("ogg", 60), ("webm", 440)])
def test_an_upload_that_ends_before_its_audio_is_refused(live_server: Start, kind: str, kept: int) -> None:
    server = live_server()
    cut = container(kind, "libopus", silence(1.0, 48_000)[:, None], 48_000)[:kept]
    response = server.http.post("/v1/listen", content=cut)
    assert (response.status_code, response.json()["err_code"]) == (400, "INVALID_AUDIO")
    assert response.json()["err_msg"].startswith("the recording has no audio; truncated: ")
    response = server.http.post("/v1/audio/transcriptions", files={"file": (f"cut.{kind}", cut)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    server.wait_idle()


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(live_server: Start) -> None:
    server = live_server(max_upload_bytes=20_000)
    for head in (LISTEN, LISTEN.replace("listen", "audio/transcriptions")):
        with uploading(server, b"", head=head, length=20_001) as (bare,):
            assert rest(bare).startswith(b"HTTP/1.1 413 ")


def test_damaged_and_too_long_recordings_are_refused_and_their_slots_released(live_server: Start) -> None:
    server = live_server(max_upload_s=30.0)
    whole = encoded(np.random.default_rng(0).integers(-3_000, 3_000, 160_000).astype(np.int16), "FLAC")
    assert server.http.post("/v1/listen", content=whole[: len(whole) // 2]).status_code in (200, 400)
    assert server.http.post("/v1/listen", content=encoded(silence(40.0), "FLAC")).status_code == 413
    server.wait_idle()


def test_stalled_and_aborted_bodies_are_ended_and_their_place_released(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "BODY_TIMEOUT_S", 0.2)
    server = live_server(max_uploads=1)
    with uploading(server, b"RIFF", length=1_000) as (bare,):
        assert rest(bare).startswith(b"HTTP/1.1 408 ")
    with uploading(server, b"RIFF", length=1_000):
        pass
    with uploading(server, b"RIFF", length=1_000) as (bare,):
        assert rest(bare).startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 503 "))
    server.wait_idle()
