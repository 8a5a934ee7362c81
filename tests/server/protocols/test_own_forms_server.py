"""`--written-forms` in a running server: on every protocol that formats text, with times, redaction and receipts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.errors import SettingsError
from server.protocols.deepgram.receipts import WRITTEN_FORMS
from server.text.own_forms import read_own_forms
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer
from tests.support.servers.receipted import record, recorded, with_keys
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.uploaded import encoded, said

TEXT = "we use tutti a s r and two lines"
SPEECH = np.concatenate([spell(TEXT), silence(1.0)])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("forms") / "forms.tsv"
    file.write_text("tutti\tTutti\ntutti a s r\tTutti ASR\nlines\t1-800 lines\n")
    return file


@pytest.fixture(scope="module")
def server(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    key_file, _ = with_keys(tmp_path_factory.mktemp("keys"))
    with LiveServer(written_forms=path, receipt_key_file=key_file) as running:
        yield running


def listened(server: LiveServer, **query: Any) -> list[dict[str, Any]]:
    """Return the results of a live stream."""
    with server.listen(**query) as client:
        client.send(SPEECH)
        frames = client.finish()
    return [frame for frame in frames if frame["type"] == "Results"]


def text_of(frame: dict[str, Any]) -> str:
    return str(frame["channel"]["alternatives"][0]["transcript"])


def test_finals_and_interims_have_them_with_the_times_of_all_words(server: LiveServer) -> None:
    results = listened(server, smart_format="true", interim_results="true", stable_words="true")
    final = next(frame for frame in results if frame["is_final"])
    assert text_of(final) == "We use Tutti ASR and two 1-800 lines."
    raw = next(frame for frame in listened(server) if frame["is_final"])
    assert text_of(raw) == TEXT, "as recognized"
    spelled = raw["channel"]["alternatives"][0]["words"]
    word = final["channel"]["alternatives"][0]["words"][2]
    assert (word["word"], word["punctuated_word"]) == ("tutti a s r", "Tutti ASR")
    assert (word["start"], word["end"]) == (spelled[2]["start"], spelled[5]["end"])
    interims = [frame for frame in results if not frame["is_final"]]
    assert any(text_of(frame).endswith("Tutti ASR") for frame in interims)
    for frame in interims:
        texts = [one["punctuated_word"] for one in frame["channel"]["alternatives"][0]["words"]]
        assert text_of(final).startswith(" ".join(texts[: frame["tutti"]["stable_words"]]))


def test_high_stability_shows_no_part_of_a_phrase(server: LiveServer) -> None:
    results = listened(server, smart_format="true", interim_results="true", interim_stability="high")
    interims = {text_of(frame) for frame in results if not frame["is_final"]}
    assert not any(text.endswith(("Tutti", "Tutti a", "Tutti a s")) for text in interims)


@pytest.mark.parametrize("kind", ["listen", "twilio", "flux"])
def test_every_protocol_that_formats_text_has_them(server: LiveServer, kind: str) -> None:
    with WireStream(server, kind, **({} if kind == "flux" else {"smart_format": "true"})) as stream:
        stream.say(TEXT)
        stream.finish()
    assert "Tutti ASR" in " ".join(stream.texts())


def test_uploads_have_them(server: LiveServer) -> None:
    body = encoded(SPEECH, "WAV")
    answer = server.http.post("/v1/listen", content=body, params={"punctuate": "true"}).json()
    assert said(answer) == "We use Tutti ASR and two 1-800 lines."
    files = {"file": ("a.wav", body)}
    answer = server.http.post("/v1/audio/transcriptions", data={"model": "whisper-1"}, files=files).json()
    assert answer["text"] == "We use Tutti ASR and two 1-800 lines."


def test_a_redacted_stream_has_none_with_as_many_digits_as_it_masks(server: LiveServer) -> None:
    for kind, written in (("pci", "1-800 lines"), ("numbers", "two lines"), ("aggressive_numbers", "[NUMBER_1] lines")):
        final = next(f for f in listened(server, smart_format="true", redact=kind) if f["is_final"])
        assert "Tutti ASR and" in text_of(final)
        assert text_of(final).endswith(f"{written}.")


def test_receipts_have_the_digest_of_the_file_in_their_settings(server: LiveServer, path: Path) -> None:
    setups = [recorded(record(server, SPEECH, **query)).setup for query in ({"smart_format": "true"}, {})]
    assert [setup.settings.get(WRITTEN_FORMS) for setup in setups] == [read_own_forms(path).digest, None]
    digests = [recorded(record(server, SPEECH, smart_format="true")).first.digests.settings]
    with LiveServer(receipt_key_file=server.settings.receipt_key_file) as other:
        digests.append(recorded(record(other, SPEECH, smart_format="true")).first.digests.settings)
    assert digests[0] != digests[1]


def test_metrics_do_not_know_them(server: LiveServer) -> None:
    assert "Tutti ASR" not in server.http.get("/metrics").text
    assert "written_forms" not in json.dumps(server.http.get("/metrics").text)


def test_a_bad_file_ends_the_start_with_setting_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "forms.tsv"
    path.write_text("tutti\tTutti\ntutti a s r\n")
    with pytest.raises(SettingsError) as raised:
        LiveServer(written_forms=path)
    assert str(raised.value).startswith(f"written_forms: {path}:2: 'tutti a s r': has 0 tabs")
