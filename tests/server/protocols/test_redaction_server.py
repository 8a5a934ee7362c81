"""`redact` on every path: no digit of a number in any message; keys that always mask; what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.access.keys import parse_keys
from server.cli import app
from server.errors import SettingsError
from server.text.redaction_kinds import Redaction
from tests.server.protocols.twilio.test_twilio import CONNECTED, STOP, media, mulaw, start
from tests.support.clients.realtime_client import speak, until_transcript, update
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import silence, spell
from tests.support.servers.spelling_hanzi import hanzi_model, letters
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded
from tutti_asr_client import Results, open_stream

Start = Callable[..., LiveServer]
CARD = "four five three nine one four eight eight zero three four three six four six seven"
TEXT = f"my card is {CARD} thanks"
SPOKEN = re.compile(r"\b(zero|one|two|three|four|five|six|seven|eight|nine)\b|\b[0-9]{3,}\b(?!-)")
PIECE = 3_200
SOCKETS = {
    "listen": "/v1/listen",
    "twilio": "/v1/twilio",
    "realtime": "/v1/realtime",
    "vosk": "/vosk",
    "flux": "/v2/listen",
}
FORM = {
    "listen": {"encoding": "linear16", "sample_rate": "16000", "interim_results": "true", "smart_format": "true"},
    "twilio": {"reply": "true", "interim_results": "true"},
    "realtime": {"intent": "transcription"},
    "vosk": {"sample_rate": "16000"},
    "flux": {"model": "flux-general-en", "encoding": "linear16", "sample_rate": "16000"},
}


def dial(server: LiveServer, kind: str, *, key: str = "", **query: Any) -> ClientConnection:
    url = f"ws://{server.host}{SOCKETS[kind]}?{urlencode(FORM[kind] | query, doseq=True)}"
    headers = {"Authorization": f"Token {key}"} if key else {}
    return connect(
        url, additional_headers=headers, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S, max_size=None
    )


def everything(socket: ClientConnection) -> list[str]:
    """Return all messages until the server closes."""
    received: list[str] = []
    try:
        while True:
            received.append(str(socket.recv(timeout=WAIT_S)))
    except ConnectionClosed:
        return received


def say(socket: ClientConnection, kind: str, text: str) -> list[str]:
    """Say a text of letters, end the stream; return all messages of the server."""
    speech = np.concatenate([spell(text), silence(1.0)])
    if kind == "realtime":
        update(socket, turn_detection=None)
        speak(socket, text)
        return [json.dumps(event, ensure_ascii=False) for event in until_transcript(socket)]
    if kind == "twilio":
        data = mulaw(np.concatenate([spell(text, 8_000), silence(1.0, 8_000)]))
        digit = '{"event":"dtmf","dtmf":{"track":"inbound_track","digit":"5"}}'
        frames = [CONNECTED, start(), digit, *(media(data[at : at + 800]) for at in range(0, len(data), 800)), STOP]
        for frame in frames:
            socket.send(frame)
        return everything(socket)
    pcm = speech.tobytes()
    received: list[str] = []
    for at in range(0, len(pcm), PIECE):
        socket.send(pcm[at : at + PIECE])
        received += [str(socket.recv(timeout=WAIT_S))] if kind == "vosk" else []
    socket.send('{"eof":1}' if kind == "vosk" else '{"type":"CloseStream"}')
    return received + everything(socket)


def words_of(messages: list[str]) -> str:
    """Return the values of messages that hold text."""
    return " | ".join(
        re.findall(r'"(?:transcript|word|punctuated_word|text|partial|delta|digit)":\s?"([^"]*)"', " ".join(messages))
    )


@pytest.mark.parametrize("kind", SOCKETS)
def test_no_digit_of_a_card_is_in_any_message_of_a_stream(live_server: Start, kind: str) -> None:
    server = live_server()
    with dial(server, kind) as socket:
        assert SPOKEN.search(words_of(say(socket, kind, TEXT)))
    with dial(server, kind, redact=["pci", "ssn"]) as socket:
        messages = say(socket, kind, TEXT)
    texts = words_of(messages)
    assert '"dtmf"' not in " ".join(messages), "keys that the caller presses"
    assert "[CREDIT_CARD_1]" in texts
    assert not SPOKEN.search(texts.replace("[CREDIT_CARD_1]", "").replace("[NUMBER_1]", "")), texts
    server.wait_idle()


def test_reports_of_steps_count_no_masked_word(live_server: Start) -> None:
    server = live_server()
    with dial(server, "listen", redact="pci", step_results="true", latency="true", stable_words="true") as socket:
        messages = say(socket, "listen", TEXT)
    assert not SPOKEN.search(words_of(messages))
    results = [json.loads(message) for message in messages if '"Results"' in message]
    assert all("latency" in result["tutti"] for result in results if not result["is_final"])
    for result in results:
        words = [word["word"] for word in result["channel"]["alternatives"][0]["words"]]
        masked = [at for at, word in enumerate(words) if word[0] == "["]
        assert result["is_final"] or not masked or result["tutti"]["stable_words"] <= masked[0]


def post(server: LiveServer, path: str, key: str = "", text: str = TEXT, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = encoded(np.concatenate([spell(text), silence(1.0)]), "WAV")
    if "listen" in path:
        return server.http.post(path, content=body, params=fields, headers=headers)
    return server.http.post(path, data=fields, files={"file": ("a.wav", body)}, headers=headers)


CHINESE_CARD = "六二二二零二一二零零零零零零零零零零五"
CHINESE = letters(f"我的卡号是{CHINESE_CARD}谢谢")
CHINESE_DIGIT = re.compile(r"[零一二三四五六七八九]|(?<![A-Z]_)[0-9]")


@pytest.mark.parametrize("kind", [kind for kind in SOCKETS if kind != "flux"])
def test_no_digit_of_a_card_in_mandarin_is_in_any_message_of_a_stream(live_server: Start, kind: str) -> None:
    server = live_server(model=[hanzi_model()])
    with dial(server, kind) as socket:
        assert CHINESE_DIGIT.search(words_of(say(socket, kind, CHINESE)))
    with dial(server, kind, redact=["pci", "ssn"]) as socket:
        messages = say(socket, kind, CHINESE)
    texts = words_of(messages)
    assert "我" in texts
    assert "[CREDIT_CARD_1]" in texts
    assert not CHINESE_DIGIT.search(texts), texts
    server.wait_idle()


@pytest.mark.parametrize("path", ["/v1/listen", "/v1/audio/transcriptions"])
def test_no_digit_of_a_card_in_mandarin_is_in_the_answer_to_an_upload(live_server: Start, path: str) -> None:
    server = live_server(model=[hanzi_model()])
    for form in ({"smart_format": "true"},) if "listen" in path else ({}, {"response_format": "srt"}):
        plain = post(server, path, text=CHINESE, **form).text
        answer = post(server, path, text=CHINESE, redact=["ssn", "pci"], **form)
        assert answer.status_code == 200
        assert "6222021200000000005" in plain or CHINESE_CARD in plain
        assert "[CREDIT_CARD_1]" in answer.text
        assert not re.search(r"6222|[零一二三四五六七八九]", answer.text)


@pytest.mark.parametrize("path", ["/v1/listen", "/v1/audio/transcriptions"])
def test_no_digit_of_a_card_is_in_the_answer_to_an_upload(live_server: Start, path: str) -> None:
    server = live_server()
    for form in ({}, {"response_format": "srt"}, {"stream": "true"}) if "audio" in path else ({},):
        answer = post(server, path, redact=["pci", "numbers"], **form)
        assert answer.status_code == 200
        assert "[CREDIT_CARD_1]" in answer.text
        assert not re.search(r"\b(four|seven|nine|4 5|4539)\b", answer.text)


@pytest.mark.parametrize(("path", "form"), [("/v1/listen", {"utterances": "true"}), ("/v1/audio/transcriptions", {})])
def test_the_first_group_of_a_number_is_masked_in_uploads(live_server: Start, path: str, form: dict[str, str]) -> None:
    """The answer comes after the last word, so later groups mask the first one, which a live stream has shown."""
    server = live_server()
    groups = ["forty one eleven is how it begins my friend ", "twenty two thirty three is what comes after it"]
    speech = np.concatenate([part for group in groups for part in (spell(group), silence(4.0))])
    fields = form | {"redact": "pci"}
    if "listen" in path:
        answer = server.http.post(path, content=encoded(speech, "WAV"), params=fields)
    else:
        answer = server.http.post(path, data=fields, files={"file": ("a.wav", encoded(speech, "WAV"))})
    texts = words_of([answer.text])
    assert "is how it begins" in texts
    assert not re.search(r"\b(forty|one|eleven|twenty|two|thirty|three)\b|[0-9]{2}", texts), texts


def test_a_key_with_redact_masks_whatever_the_client_asks_for(live_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'calls').hexdigest()} calls redact=pci\n")
    server = live_server(api_keys=["open"], api_keys_file=path)
    for kind in SOCKETS:
        with dial(server, kind, key="open") as socket:
            assert SPOKEN.search(words_of(say(socket, kind, TEXT)))
        with dial(server, kind, key="calls", redact="false") as socket:
            texts = words_of(say(socket, kind, TEXT))
        assert "[CREDIT_CARD_1]" in texts
        assert "four" not in texts
    for upload in ("/v1/listen", "/v1/audio/transcriptions"):
        assert "[CREDIT_CARD_1]" in post(server, upload, key="calls", redact="false").text
    with pytest.raises(InvalidStatus) as refused:
        dial(server, "listen", key="calls", resumable="true")
    assert "redact: cannot be combined with resumable" in refused.value.response.body.decode()


@pytest.mark.parametrize("kind", SOCKETS)
@pytest.mark.parametrize("value", ["name", "pii", "pci,ssn"])
def test_what_cannot_be_masked_is_refused_by_name(live_server: Start, kind: str, value: str) -> None:
    for server in (live_server(), live_server(lenient_features=True)):
        with pytest.raises(InvalidStatus) as refused:
            dial(server, kind, redact=["pci", value])
        assert refused.value.response.status_code == 400
        assert f"redact: '{value}' is not supported" in refused.value.response.body.decode()


def test_a_model_of_another_language_is_refused(live_server: Start) -> None:
    server = live_server(model=two_models())
    for kind in SOCKETS:
        with pytest.raises(InvalidStatus) as refused:
            dial(server, kind, redact="pci", **({"model": "es"} if kind == "flux" else {"language": "es"}))
        assert "redact: numbers are masked in English and Mandarin only" in refused.value.response.body.decode()
    assert post(server, "/v1/listen", redact="pci", language="es").status_code == 400
    with dial(server, "realtime", redact="pci") as socket:
        update(socket, transcription={"language": "es"})
        messages = [json.loads(socket.recv(timeout=WAIT_S)) for _ in range(2)]
    assert "redact: numbers are masked in English and Mandarin only" in messages[1]["error"]["message"]


def test_a_keys_file_with_an_unknown_kind_is_refused() -> None:
    digest = "0" * 64
    (key,) = parse_keys([("keys:1", f"{digest} name redact=pci,ssn")])
    assert key.redact == {Redaction.PCI, Redaction.SSN}
    for line in ("redact=name", "redact=", "redact=pci redact=ssn"):
        with pytest.raises(SettingsError, match=r"^keys:1: expected DIGEST .*\[redact=…\]"):
            parse_keys([("keys:1", f"{digest} {line}")])


def test_the_command_writes_keys_with_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made = CliRunner().invoke(app, ["keys", "new", "--redact", "ssn", "--redact", "pci", "--file", str(path)])
    (key,) = parse_keys([("keys:1", path.read_text())])
    assert (made.exit_code, key.redact) == (0, {Redaction.PCI, Redaction.SSN})
    refused = CliRunner().invoke(app, ["keys", "new", "--redact", "name", "--file", str(path)])
    assert refused.exit_code == 2
    assert "--redact: 'name' is not supported by this server; must be one of pci" in refused.output


def test_the_client_library_asks_for_redaction(live_server: Start) -> None:
    server = live_server()

    async def said() -> list[str]:
        async with open_stream(f"ws://{server.host}", redact=["pci", "ssn"]) as stream:
            await stream.send(np.concatenate([spell(TEXT), silence(1.0)]))
            await stream.close_stream()
            return [message.text async for message in stream if isinstance(message, Results)]

    texts = asyncio.run(said())
    assert "my card is [CREDIT_CARD_1] thanks" in texts
    assert not any(SPOKEN.search(text) for text in texts)
