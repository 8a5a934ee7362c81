"""Receipts of a running server: their chain, refusals, redaction, resumed streams, and the public keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from model.ctc.beam import BeamDecoder
from model.decoder import decoder_of
from server.errors import SettingsError
from server.receipts.keys import ReceiptKeys
from server.receipts.recorded import Recorded
from server.receipts.verification import check_audio, check_recorded
from server.recognition.audio_digest import digest_of
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.networks.published import model_of
from tests.support.servers.live_server import LiveServer
from tests.support.servers.receipted import record, recorded, with_keys
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell

RATE = CONFIG.sample_rate
TEXTS = ("hello there this is one", "and here is two", "now a third sentence of some length", "end")
RESUME_KEY = new_key()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReceiptKeys]:
    return with_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server(keys: tuple[Path, ReceiptKeys]) -> Iterator[LiveServer]:
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16)
    with LiveServer(decoder=decoder, receipt_key_file=keys[0], resume_keys=(RESUME_KEY,)) as running:
        yield running


def speech(rate: int = RATE) -> np.ndarray:
    return np.concatenate([part for text in TEXTS for part in (spell(text, rate), silence(0.9, rate))])


def test_the_beam_search_of_a_transducer_is_named(keys: Any) -> None:
    model = model_of("zipformer2-transducer")
    search = decoder_of(model.facts, decoder="beam")
    with LiveServer(model=model, decoder=search, receipt_key_file=keys[0]) as server:
        info = recorded(record(server, silence(0.5, RATE))).setup.model
    assert (info.decoder, info.beams) == ("beam", 4)


def test_each_final_and_the_last_message_have_a_receipt_of_one_chain(server: LiveServer, keys: Any) -> None:
    frames = record(server, speech(), interim_results="true", smart_format="true")
    for frame in frames:
        assert ("receipt" in frame) == (frame["type"] == "Metadata" or frame.get("is_final", False))
    found = recorded(frames)
    assert check_recorded(found, keys[1]) == []
    assert check_audio(found, speech().tobytes(), 1, RATE) == []
    assert [entry.receipt.number for entry in found.entries] == list(range(len(found.entries)))
    assert found.closed == "close_stream"
    assert found.first.stream == frames[-1]["request_id"]


def test_a_client_can_compute_the_digest_of_the_audio_and_the_words(server: LiveServer) -> None:
    """The recipe of docs/receipts.md, without this project's code."""
    audio = speech().tobytes()
    frames = record(server, speech())
    entry = recorded(frames).entries[1]
    digest = b""
    covered = audio[: 2 * entry.receipt.audio.end]
    for start in range(0, len(covered), 8_000):
        digest = hashlib.sha256(digest + covered[start : start + 8_000]).digest()
    assert digest.hex() == entry.receipt.audio.sha256
    lines = "".join(
        f"{round(w['start'] * 1e3)}\t{round(w['end'] * 1e3)}\t{round(w['confidence'] * 1e4)}\t{w['word']}"
        f"\t{w.get('punctuated_word', w['word'])}\n"
        for w in entry.message["channel"]["alternatives"][0]["words"]
    )
    assert hashlib.sha256(lines.encode()).hexdigest() == entry.receipt.final.sha256


def test_times_between_microseconds_are_those_of_the_message(server: LiveServer, keys: Any) -> None:
    """A sample of 16 kHz is 62.5 µs."""
    for count in (1, 3, 5):
        found = recorded(record(server, np.concatenate([speech(), speech()[:count]])))
        assert check_recorded(found, keys[1]) == []


def test_without_receipt_there_is_none(server: LiveServer) -> None:
    with server.listen() as client:
        client.send(speech())
        assert not any("receipt" in frame for frame in client.finish())


def test_audio_is_that_before_channels_are_mixed(server: LiveServer, keys: Any) -> None:
    audio = np.stack([speech(), speech()[::-1]], axis=1)
    found = recorded(record(server, audio, channels=2))
    assert found.entries[-1].receipt.audio.sha256 == digest_of(audio.tobytes(), 2).hex()


def test_mulaw_counts_as_decoded(server: LiveServer) -> None:
    codes = np.where(speech(8_000) > 0, 0x80, 0xFF).astype(np.uint8)
    found = recorded(record(server, codes, encoding="mulaw", sample_rate=8_000))
    decoded = np.where(codes == 0x80, 32_124, 0).astype("<i2")
    assert found.entries[-1].receipt.audio.sha256 == digest_of(decoded.tobytes()).hex()


# Redaction


def test_no_digit_of_a_masked_number_is_in_a_receipt(server: LiveServer, keys: Any) -> None:
    number = "four one one one two two two two three three three three four four four four"
    audio = np.concatenate([spell(f"my card {number}"), silence(1.5), spell("thanks"), silence(1)])
    frames = record(server, audio, redact="pci")
    text = "".join(keys[1].verify(frame.pop("receipt")).decode() for frame in deepcopy(frames) if "receipt" in frame)
    text += json.dumps([{name: value for name, value in frame.items() if name != "receipt"} for frame in frames])
    text = re.sub("[0-9a-f]{64}", "", text)  # a digest has any digits by chance
    assert "[" in text
    assert not any(word in text for word in (number, "four one", "two two", "4111", "1111"))
    assert check_recorded(recorded(frames), keys[1]) == []


def test_the_masks_of_a_key_are_in_the_setup(tmp_path: Path, keys: Any) -> None:
    api_key = "a-key-of-a-bank"
    lines = tmp_path / "keys"
    lines.write_text(f"{hashlib.sha256(api_key.encode()).hexdigest()} bank redact=pci,ssn\n")
    headers = {"Authorization": f"Token {api_key}"}
    with (
        LiveServer(receipt_key_file=keys[0], api_keys_file=lines) as server,
        server.listen(headers, receipt="true") as client,
    ):
        client.send(speech())
        found = recorded(client.finish())
    assert [pair for pair in found.setup.query if pair[0] == "redact"] == [("redact", "pci"), ("redact", "ssn")]


def test_a_receipt_holds_parameters_in_any_spelling_of_their_names(keys: Any) -> None:
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16)
    with LiveServer(decoder=decoder, receipt_key_file=keys[0]) as server:
        spelled = {"keyterms": "third", "keyterm[]": "there", "Smart_Format": "true"}
        setup = recorded(record(server, speech(), **spelled)).setup
    asked = [("keyterm", "third"), ("keyterm", "there"), ("smart_format", "true")]
    assert [pair for pair in setup.query if pair in asked] == asked


def refusal(server: LiveServer, **query: Any) -> str:
    with pytest.raises(InvalidStatus) as refused:
        server.listen(**query).__enter__()
    assert refused.value.response.status_code == 400
    return str(json.loads(refused.value.response.body or b"{}")["err_msg"])


def test_key_terms_with_numbers_are_refused_with_redact(server: LiveServer) -> None:
    for term in ("4719", "four seven", "pin 12"):
        message = refusal(server, receipt="true", redact="pci", keyterm=term)
        assert message.startswith("receipt: cannot be combined with redact and key terms that have numbers")
        assert term not in message
    assert recorded(record(server, speech(), redact="pci", keyterm="there")).finals


# Refusals


def test_a_server_without_a_key_refuses_by_name() -> None:
    with LiveServer() as server:
        assert refusal(server, receipt="true").startswith("receipt: this server has no key that signs receipts")
        assert server.http.get("/.well-known/jwks.json").json() == {"keys": []}
        with server.listen(receipt="false"):
            pass


@pytest.mark.parametrize("encoding", ["opus", "flac", None])
def test_audio_that_libraries_decode_is_refused(server: LiveServer, encoding: str | None) -> None:
    rate = 48_000 if encoding == "opus" else None
    message = refusal(server, receipt="true", encoding=encoding, sample_rate=rate)
    assert message.startswith("receipt: requires one of encoding=")


def test_a_container_in_a_raw_stream_is_refused(server: LiveServer) -> None:
    with server.listen(receipt="true") as client:
        client.send(b"RIFF\x00\x00\x00\x00WAVEfmt " + bytes(64))
        frames, _, _ = client.rest()
    assert "container" in frames[0]["description"]


def test_uploads_and_other_protocols_refuse_it(server: LiveServer) -> None:
    for path in ("/v1/listen", "/v1/audio/transcriptions"):
        answer = server.http.post(path, params={"receipt": "true"}, content=b"", headers={"Content-Type": "audio/wav"})
        assert answer.status_code == 400, path
    assert (
        "only live streams at /v1/listen have receipts"
        in server.http.post("/v1/listen", params={"receipt": "true"}, content=b"x").json()["err_msg"]
    )
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{server.host}/vosk?receipt=true")
    assert refused.value.response.status_code == 400


def test_key_terms_cannot_change(server: LiveServer) -> None:
    with server.listen(receipt="true", keyterm="there") as client:
        client.say("Configure", keyterms=["there"])
        assert client.receive()["type"] == "ConfigureSuccess"
        client.say("Configure", keyterms=["here"])
        answer = client.receive()
        client.say("Context", text="Bill Kowalczyk")
        context = client.receive()
    assert answer["type"] == "ConfigureFailure"
    assert answer["description"] == "keyterms: cannot be changed in a stream with receipts"
    assert context["type"] == "ContextFailure"
    assert context["description"] == "text: not possible in a stream with receipts"


# Resumed streams


@pytest.mark.parametrize(("rate", "query"), [(RATE, {}), (8_000, {}), (RATE, {"keyterm": "third sentence"})])
@pytest.mark.parametrize("losses", [[1.0, 2.0, 4.4, 7.1], [0.6], [3.05, 3.9]])
def test_a_resumed_stream_has_the_chain_of_an_unbroken_one(
    keys: Any, losses: list[float], rate: int, query: Any
) -> None:
    decoders = [BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16) for _ in range(2)]
    audio = speech(rate)[:, None]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(LiveServer(decoder=one, resume_keys=(RESUME_KEY,), receipt_key_file=keys[0]))
            for one in decoders
        ]
        whole = chain(ResumingClient(servers[:1], audio, rate, receipt="true", **query).run(()))
        moved = chain(ResumingClient(servers, audio, rate, receipt="true", **query).run(losses))
    assert check_recorded(moved, keys[1]) == []
    assert check_audio(moved, audio.tobytes(), 1, rate) == []
    assert moved.closed == "close_stream"
    assert [entry.receipt.audio for entry in moved.entries] == [entry.receipt.audio for entry in whole.entries]
    assert [entry.receipt.final for entry in moved.entries] == [entry.receipt.final for entry in whole.entries]


def test_two_channels_go_on_together(keys: Any) -> None:
    audio = np.stack([speech(), np.roll(speech(), 9_000)], axis=1)
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(resume_keys=(RESUME_KEY,), receipt_key_file=keys[0])) for _ in range(2)]
        moved = chain(ResumingClient(pair, audio, RATE, receipt="true", multichannel="true").run([1.1, 2.9, 6.0]))
    assert check_recorded(moved, keys[1]) == []
    assert check_audio(moved, audio.tobytes(), 2, RATE) == []


def chain(received: Any) -> Recorded:
    return recorded([*received.finals, *(frame for frame in received.others if frame["type"] == "Metadata")])


def test_without_a_ticket_the_chain_begins_at_the_clients_time(server: LiveServer, keys: Any) -> None:
    audio = speech()
    with server.listen(receipt="true", resumable="true") as client:
        client.say("Resume", from_s=2.0, finals=3)
        client.send(audio[2 * RATE :])
        found = recorded([frame for frame in client.finish() if frame["type"] != "Ticket"])
    assert found.first.number == 0
    assert found.first.audio.begin == 2 * RATE
    assert check_recorded(found, keys[1]) == []
    assert check_audio(found, audio.tobytes(), 1, RATE) == []


# Keys


def test_public_keys_need_no_api_key_and_have_no_private_part(tmp_path: Path, keys: Any) -> None:
    with LiveServer(receipt_key_file=keys[0], api_keys=("secret",)) as server:
        answer = httpx.get(f"http://{server.host}/.well-known/jwks.json")
    assert answer.headers["content-type"] == "application/jwk-set+json"
    assert [sorted(key) for key in answer.json()["keys"]] == [["alg", "crv", "kid", "kty", "use", "x"]]
    signed = keys[1].sign(b"a")
    assert ReceiptKeys.read(answer.text).verify(signed) == b"a"


def test_an_older_key_still_verifies(keys: Any) -> None:
    newer = ReceiptKeys.new(keys[1])
    assert ReceiptKeys.read(newer.as_text(private=False)).verify(keys[1].sign(b"old")) == b"old"
    assert ReceiptKeys.read(newer.as_text(private=False)).verify(newer.sign(b"new")) == b"new"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("secret", "expected a JSON Web Key of type Ed25519"),
        ('{"keys": []}', "expected a JSON Web Key of type Ed25519"),
        ('{"kty": "oct", "k": "c2VjcmV0"}', "expected a JSON Web Key of type Ed25519"),
        ("public", "the first key is public and cannot sign"),
    ],
)
def test_a_bad_key_file_ends_the_start_with_its_name(tmp_path: Path, keys: Any, text: str | None, problem: str) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(keys[1].as_text(private=False) if text == "public" else text)
    with pytest.raises(SettingsError, match=problem) as raised:
        LiveServer(receipt_key_file=path)
    assert str(raised.value).startswith("receipt_key_file: ")
    assert "c2VjcmV0" not in str(raised.value)
