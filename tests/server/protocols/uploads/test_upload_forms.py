"""Forms as HTTP clients send them, errors that start with the field, and warnings about the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.protocols.openai.form import parse_form
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
WAV = encoded(spell("hello"), "WAV")


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a body of parts, each given as the rest of its disposition and its content."""
    heads = (b"--x\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (d.encode(), body) for d, body in parts)
    return b"".join(heads) + b"--x--\r\n"


DISPOSITIONS = [
    'name="file"',
    'name="file"; filename="a.wav"',
    "name=\"file\"; filename*=UTF-8''%e4%bd%a0.wav",
    'name="file"; filename="a.wav"; filename*=UTF-8\'\'b.wav',
    'name="file"; filename=""',
    "name=file",
]


@pytest.mark.parametrize("disposition", DISPOSITIONS)
def test_a_file_is_found_in_any_form_of_its_disposition(disposition: str) -> None:
    assert parse_form("multipart/form-data; boundary=x", form((disposition, WAV))).body == WAV


def test_a_truncated_upload_gets_a_warning_in_every_format(live_server: Start) -> None:
    server, cut = live_server(), WAV[:-2]
    answer = server.http.post("/v1/listen?encoding=linear16&sample_rate=8000", content=cut).json()
    assert said(answer) == "hello"
    (warning,) = answer["metadata"]["warnings"]
    assert warning["type"] == "truncated"
    assert "warnings" not in server.http.post("/v1/listen", content=WAV).json()["metadata"]
    for kind in ("json", "verbose_json", "text", "srt", "vtt"):
        files, fields = {"file": ("a.wav", cut)}, {"response_format": kind}
        response = server.http.post("/v1/audio/transcriptions", files=files, data=fields)
        assert response.headers["x-warnings"].startswith("truncated: ")
        if "json" in kind:
            assert response.json()["warnings"] == [response.headers["x-warnings"]]
    streamed = server.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", cut)}, data={"stream": "true"})
    assert '"warnings":["truncated: ' in streamed.text
    server.wait_idle()
