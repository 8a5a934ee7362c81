"""`redact` on every path: no digit of a number in any message; keys that always mask; what is refused."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from server.access.keys import parse_keys
from server.cli import app
from server.errors import SettingsError
from server.text.numbers.spoken_digits import Part, parts, plain
from server.text.redaction_kinds import Redaction
from tests.support.audio.english_numbers import number, read_out
from tests.support.clients.flux_wire_rules import check_flux
from tests.support.protocols.wire_stream import WireStream, texts_in
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell, voiced
from tests.support.servers.recognizers.spelling_hanzi import hanzi_model, letters
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded
from tutti_asr_client import Results, open_stream

Start = Callable[..., LiveServer]
CARD = "four five three nine one four eight eight zero three four three six four six seven"
SOCKETS = ("listen", "twilio", "openai", "vosk", "flux")
TEXT = f"my card is {CARD} thanks"
MASKED = re.compile(r"\[[A-Z_]+_[0-9]+\]")
SPOKEN = re.compile(r"\b(zero|one|two|three|four|five|six|seven|eight|nine)\b|\b[0-9]{3,}\b(?!-)")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Random identifiers of an answer, which may have the digits of a card."""


def said(server: LiveServer, protocol: str, text: str = TEXT, key: str = "", **query: Any) -> list[dict[str, Any]]:
    """Say a text; return all messages of the server."""
    interims = {"interim_results": "true", "smart_format": "true"} if protocol in ("listen", "twilio") else {}
    with WireStream(server, protocol, key, **(interims | query)) as stream:
        if protocol == "twilio":
            stream.send({"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": "5"}})
        stream.say(text, 1.0)
        stream.finish()
    return stream.frames


def words(messages: Any) -> str:
    """Return every text in a field for recognized words, of finals and interims."""
    return " | ".join(texts_in(messages))


@pytest.mark.parametrize("protocol", SOCKETS)
def test_no_digit_of_a_card_is_in_any_message_of_a_stream(live_server: Start, protocol: str) -> None:
    server = live_server()
    assert SPOKEN.search(words(said(server, protocol)))
    messages = said(server, protocol, redact=["pci", "ssn"])
    assert "dtmf" not in [message.get("event") for message in messages], "keys that the caller presses"
    assert "[CREDIT_CARD_1]" in words(messages)
    assert not SPOKEN.search(words(messages).replace("[CREDIT_CARD_1]", "").replace("[NUMBER_1]", ""))
    server.wait_idle()


@pytest.mark.parametrize("seed", range(24))
def test_turns_with_early_ends_show_no_digit_of_a_number_wherever_it_pauses(live_server: Start, seed: int) -> None:
    """Forks are made inside the number, too, after 0.2 s: none of its words leave, and later turns have early ends."""
    rng = random.Random(seed)
    words_of_number = read_out(number("card", rng), rng)
    pieces = [voiced("hold the line"), silence(1.0), voiced("my card is ")]
    for word in words_of_number:
        pieces += [voiced(f"{word} "), silence(rng.choice((0.0, 0.0, 0.3, 1.0)))]
    pieces += [voiced("thanks a lot"), silence(1.0)]
    query = {"eager_eot_threshold": "0.4", "wait_in_numbers": rng.choice(("true", "false")), "redact": "pci"}
    with WireStream(live_server(), "flux", **query) as stream:
        stream.send(np.concatenate(pieces).tobytes())
        stream.send({"type": "CloseStream"})
        stream.rest()
    turns = check_flux(stream.frames)
    for turn in turns:
        texts = [plain(word["word"]) for word in turn["words"] if word["word"][0] != "["]
        assert Part.NUMBER not in parts(texts, in_number=True, ordinals=True), turn
        assert not SPOKEN.search(MASKED.sub("", turn["transcript"])), turn
    early = [turn["transcript"] for turn in turns if turn["event"] == "EagerEndOfTurn"]
    assert early[0] == "Hold the line."
    assert "[" in words(stream.frames)


def test_turns_without_numbers_have_the_early_ends_of_a_stream_without_redaction(live_server: Start) -> None:
    server = live_server()
    audio = np.concatenate([voiced("hello there"), silence(1.0), voiced("two tickets please"), silence(1.5)]).tobytes()
    turns = []
    for query in ({}, {"redact": "pci"}):
        with WireStream(server, "flux", eager_eot_threshold="0.4", **query) as stream:
            stream.send(audio)
            stream.send({"type": "CloseStream"})
            stream.rest()
        turns.append(
            [(turn["event"], turn["audio_window_end"], turn["transcript"]) for turn in check_flux(stream.frames)]
        )
    ends = [[turn for turn in each if turn[0] in ("EagerEndOfTurn", "EndOfTurn")] for each in turns]
    assert ends[0][:2] == ends[1][:2], "the same words at the same time"
    assert [turn[2] for turn in ends[1][2:]][-1] == ends[0][-1][2] == "Two tickets please.", (
        "a short number, as in a final"
    )
    assert ends[1][-1][1] > ends[0][-1][1], "which is known later"


def test_reports_of_steps_count_no_masked_word(live_server: Start) -> None:
    reports = {"step_results": "true", "latency": "true", "stable_words": "true"}
    messages = said(live_server(), "listen", redact="pci", **reports)
    assert not SPOKEN.search(words(messages))
    for result in (message for message in messages if message["type"] == "Results"):
        texts = [word["word"] for word in result["channel"]["alternatives"][0]["words"]]
        masked = [at for at, text in enumerate(texts) if text[0] == "["]
        assert result["is_final"] or "latency" in result["tutti"]
        assert result["is_final"] or not masked or result["tutti"]["stable_words"] <= masked[0]


@pytest.mark.parametrize("protocol", [protocol for protocol in SOCKETS if protocol != "flux"])
def test_no_digit_of_a_card_in_mandarin_is_in_any_message_of_a_stream(live_server: Start, protocol: str) -> None:
    server = live_server(model=[hanzi_model()])
    assert CHINESE_DIGIT.search(words(said(server, protocol, CHINESE)))
    texts = words(said(server, protocol, CHINESE, redact=["pci", "ssn"]))
    assert "我" in texts
    assert "[CREDIT_CARD_1]" in texts
    assert not CHINESE_DIGIT.search(texts), texts


GROUPS = ("forty one eleven is how it begins my friend ", "twenty two thirty three is what comes after it")
RECORDED = np.concatenate([part for group in GROUPS for part in (spell(group), silence(4.0))])
UPLOADS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/listen", {"smart_format": "true"}),
    ("/v1/listen", {"utterances": "true"}),
    ("/v1/audio/transcriptions", {}),
    ("/v1/audio/transcriptions", {"response_format": "srt"}),
    ("/v1/audio/transcriptions", {"stream": "true"}),
]


@pytest.mark.parametrize(("path", "form"), UPLOADS)
def test_no_digit_of_a_card_is_in_the_answer_to_an_upload(live_server: Start, path: str, form: dict[str, Any]) -> None:
    """The first group of a number, too: the answer comes after the last word; a live stream has shown it by then."""
    server, chinese = live_server(), live_server(model=[hanzi_model()])
    for text, digits, one in (
        (TEXT, r"\b(four|seven|nine|4 5|4539)\b", server),
        (CHINESE, "6222|[零一二三四]", chinese),
    ):
        assert re.search(f"{digits}|4{{4}}|[0-9]{{4}}", post(one, path, text=text, **form).text)
        answer = post(one, path, text=text, redact=["pci", "ssn"], **form)
        assert answer.status_code == 200
        assert "[CREDIT_CARD_1]" in answer.text
        assert not re.search(digits, UUID.sub("", answer.text))
    answer = post(server, path, audio=RECORDED, redact="pci", **form)
    assert "is how it begins" in answer.text
    text = UUID.sub("", answer.text)
    assert not re.search(r"\b(forty|eleven|twenty|thirty|4111|4 111)\b", text), text


def test_a_key_with_redact_masks_whatever_the_client_asks_for(live_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'calls').hexdigest()} calls redact=pci\n")
    server = live_server(api_keys=["open"], api_keys_file=path)
    for protocol in SOCKETS:
        assert SPOKEN.search(words(said(server, protocol, key="open")))
        texts = words(said(server, protocol, key="calls", redact="false"))
        assert "[CREDIT_CARD_1]" in texts
        assert "four" not in texts
    for upload in ("/v1/listen", "/v1/audio/transcriptions"):
        assert "[CREDIT_CARD_1]" in post(server, upload, key="calls", redact="false").text
    with pytest.raises(InvalidStatus) as refused:
        WireStream(server, "listen", "calls", resumable="true")
    assert "redact: cannot be combined with resumable" in refused.value.response.body.decode()


def test_a_session_with_redaction_does_not_switch_to_a_model_of_another_language(live_server: Start) -> None:
    with WireStream(live_server(model=two_models()), "openai", redact="pci") as stream:
        transcription = {"transcription": {"language": "es"}}
        stream.send({"type": "session.update", "session": {"audio": {"input": transcription}}})
        stream.until("redact: numbers are masked in English and Mandarin only")


def post(
    server: LiveServer, path: str, key: str = "", text: str = TEXT, audio: Any = None, **fields: Any
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = encoded(np.concatenate([spell(text), silence(1.0)]) if audio is None else audio, "WAV")
    if "listen" in path:
        return server.http.post(path, content=body, params=fields, headers=headers)
    return server.http.post(path, data=fields, files={"file": ("a.wav", body)}, headers=headers)


CHINESE_CARD = "六二二二零二一二零零零零零零零零零零五"
CHINESE = letters(f"我的卡号是{CHINESE_CARD}谢谢")
CHINESE_DIGIT = re.compile(r"[零一二三四五六七八九]|(?<![A-Z]_)[0-9]")


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


async def test_the_client_library_asks_for_redaction(live_server: Start) -> None:
    server = live_server()
    async with open_stream(f"ws://{server.host}", redact=["pci", "ssn"]) as stream:
        await stream.send(np.concatenate([spell(TEXT), silence(1.0)]))
        await stream.close_stream()
        texts = [message.text async for message in stream if isinstance(message, Results)]
    assert "my card is [CREDIT_CARD_1] thanks" in texts
    assert not any(SPOKEN.search(text) for text in texts)
