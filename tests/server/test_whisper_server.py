"""A server whose accurate finals are read by a second pass with a deadline, as its clients see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from model.whisper import Whisper, WhisperReading
from server.cli import app
from server.models import whisper as loading
from server.models.loading import LoadedModel
from server.models.whisper import whisper_decoder
from server.recognition.whisper.whisper_decoder import WhisperDecoder
from server.settings import Settings
from tests.support.protocols.listen_query import RAW, query
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.receipted import with_keys
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, silence, spell, spelling_decoder
from tests.support.servers.uploaded import encoded, said

SPOKEN = np.concatenate([spell("won "), silence(1.0)])
FALLBACKS = "tutti_second_decode_fallbacks_total"


class Reader:
    """Answers once its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.text, self.repetition = "Twenty-ONE.", 1.0

    def read(self, pcm: np.ndarray[Any, Any], language: str, terms: str = "") -> WhisperReading:
        del pcm, language, terms
        assert self.gate.wait(WAIT_S)
        return WhisperReading(self.text, 0.5, self.repetition)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def server(reader: Reader, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    settings: Any = {"second_pass_timeout_s": getattr(request, "param", WAIT_S), "max_openings_per_s": "off"}
    decoder = WhisperDecoder(spelling_decoder(), reader, "en", CONFIG, "whisper:x")  # type: ignore[arg-type]
    model = LoadedModel.of(SpellingModel(), spelling_decoder(), "en", ("en",), passes={("accurate", ""): decoder})
    key_file, _ = with_keys(tmp_path)
    with LiveServer([model], receipt_key_file=key_file, **settings) as server:
        yield server
        reader.gate.set()


def stream(server: LiveServer, **asked: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the finals with words of one stream, and its summary."""
    with server.listen(**asked) as client:
        client.send(SPOKEN)
        *results, summary = client.finish()
    finals = [one for one in results if one["type"] == "Results" and one["is_final"]]
    return [one for one in finals if one["channel"]["alternatives"][0]["words"]], summary


def text(final: dict[str, Any]) -> str:
    return str(final["channel"]["alternatives"][0]["transcript"])


def test_finals_have_its_text_in_the_written_form_that_was_asked_for(server: LiveServer) -> None:
    (final,), summary = stream(server, finals="accurate")
    assert text(final) == "twenty one"
    assert "second_pass" not in final
    assert "warnings" not in summary
    (final,), _ = stream(server, finals="accurate", smart_format="true")
    assert text(final) == "21"
    (final,), _ = stream(server)
    assert text(final) == "won"
    assert server.metric(FALLBACKS) == 0


def test_numbers_of_its_text_are_masked(server: LiveServer, reader: Reader) -> None:
    reader.text = "My card is 4111 1111 1111 1111, thanks."
    (final,), _ = stream(server, finals="accurate", redact="pci")
    assert text(final).startswith("my card is [")
    assert "one" not in text(final)


@pytest.mark.parametrize("server", [0.1], indirect=True)
def test_a_late_final_is_ours_and_says_so(server: LiveServer, reader: Reader) -> None:
    reader.gate.clear()
    (final,), summary = stream(server, finals="accurate")
    assert (text(final), final["second_pass"]) == ("won", "late")
    message = "late: the text of the first pass was sent in 1 finals"
    assert summary["warnings"] == [{"parameter": "finals", "type": "late", "message": message}]
    assert server.metric(f'{FALLBACKS}{{model="en",reason="late"}}') == 1


@pytest.mark.parametrize(("written", "repetition", "reason"), [("no no no", 9.0, "repeated"), (" …", 1.0, "empty")])
def test_a_text_that_is_not_usable_is_ours_and_says_so(
    server: LiveServer, reader: Reader, written: str, repetition: float, reason: str
) -> None:
    reader.text, reader.repetition = written, repetition
    (final,), _ = stream(server, finals="accurate")
    assert (text(final), final["second_pass"]) == ("won", reason)
    assert server.metric(f'{FALLBACKS}{{model="en",reason="{reason}"}}') == 1


@pytest.mark.parametrize("server", [0.1], indirect=True)
def test_segments_of_uploads_have_no_deadline(server: LiveServer, reader: Reader) -> None:
    reader.gate.clear()
    threading.Timer(0.4, reader.gate.set).start()
    with server.http as client:
        answer = client.post("/v1/listen", params={"finals": "accurate"}, content=encoded(SPOKEN, "wav"))
    assert said(answer.json()) == "twenty one"


def test_a_wait_for_it_refuses_no_new_streams(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(server.replica.models.default.recognizer.slots, "waited", waits.append)
    stream(server, finals="accurate")
    assert waits == []


@pytest.mark.parametrize(
    ("excluded", "why"),
    [
        ({"receipt": "true"}, "receipt: cannot be combined with finals=accurate on this server"),
        ({"resumable": "true"}, "resumable: cannot be combined with finals=accurate on this server"),
        ({"stable_words": "true"}, "finals: accurate cannot be combined with stable_words"),
    ],
)
def test_what_accurate_finals_exclude_is_refused_by_name(
    server: LiveServer, excluded: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        server.listen(finals="accurate", **excluded)
    assert refused.value.response.headers["dg-error"].startswith(why)


def test_receipts_and_tickets_win_over_the_servers_default(server: LiveServer) -> None:
    model = replace(server.replica.models.default, finals="accurate")
    assert model.decoder_for(query(RAW)) is model.passes["accurate", ""]
    assert model.decoder_for(query(RAW + "&receipt=true")) is model.decoder
    assert model.decoder_for(query(RAW + "&resumable=true")) is model.decoder


# Loading


class Loaded:
    """Stands for a Whisper model with these languages."""

    def __init__(self, *languages: str) -> None:
        self.languages = languages

    def has_language(self, tag: str) -> bool:
        return tag.partition("-")[0] in self.languages


@pytest.mark.parametrize(
    ("languages", "reads"),
    [
        (("en",), True),
        (("en-US", "en-GB"), True),
        (("de",), True),
        (("fr",), False),
        (("en", "de"), False),  # which of them a segment has is not known
        (("zh",), False),
        ((), False),
    ],
)
def test_it_reads_the_segments_of_models_of_one_language_that_it_has(
    languages: tuple[str, ...], reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    monkeypatch.setattr(Whisper, "load", lambda folder, *_, **__: (loads.append(folder), Loaded("en", "de", "zh"))[1])
    loading._loaded.cache_clear()
    settings = Settings(second_pass="whisper:here")
    made = [whisper_decoder(spelling_decoder(), CONFIG, languages, settings) for _ in range(2)]
    loading._loaded.cache_clear()
    assert [decoder is not None for decoder in made] == [reads, reads]
    assert loads == [Path("here")], "loaded once for all models"
    assert whisper_decoder(spelling_decoder(), CONFIG, languages, Settings()) is None


@pytest.mark.parametrize(
    ("value", "status", "named"),
    [
        ("tiny.en", 2, "tutti: --second-pass (TUTTI_SECOND_PASS): "),
        ("whisper:absent", 1, "tutti: --second-pass (TUTTI_SECOND_PASS) needs faster_whisper: pip install "),
    ],
)
def test_a_server_that_cannot_have_it_does_not_start(
    value: str, status: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    done = CliRunner().invoke(app, ["serve", "--second-pass", value, "--port", "0"])
    assert (done.exit_code, done.stderr.startswith(named)) == (status, True), done.stderr
