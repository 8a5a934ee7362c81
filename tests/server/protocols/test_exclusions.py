"""Features together: each pair is refused with both names, or the stream works and is billed for what it asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from model.ctc.beam import BeamDecoder
from server.models.loading import LoadedModel
from server.recognition.request import EXCLUSIONS, FORKS, PACKED, REST, Exclusion, is_excluded
from server.recognition.steps import Auxiliary
from tests.server.models.test_several_models import Titled
from tests.support.protocols.listen_query import RAW, query
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.receipted import with_keys
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, silence, spell
from tests.support.servers.recognizers.voices import Voices
from tests.support.servers.uploaded import encoded, said

REPOSITORY = Path(__file__).parents[3]
SPOKEN = np.concatenate([spell("hello "), silence(1.0)])
QUERIES: dict[str, dict[str, str | None]] = {
    "grammar": {"grammar": "loud"},
    "accurate": {"finals": "accurate"},
    "context": {"finals": "context"},
    "rewind": {"rewind": "5"},
    "redact": {"redact": "pci"},
    "receipt": {"receipt": "true"},
    "resumable": {"resumable": "true"},
    "utterances": {"utterances": "true"},
    "smart": {"endpointing": "smart"},
    "stable words": {"stable_words": "true"},
    "multichannel": {"multichannel": "true", "channels": "2"},
    "number": {"keyterm": "twenty one"},
    "container": {"encoding": None, "sample_rate": None},
    "interim_results": {"interim_results": "true"},
    "steps": {"step_results": "true"},
    "voice": {"vad_events": "true"},
    "gap": {"utterance_end_ms": "1000"},
    "style": {"smart_format": "true"},
    "speakers": {"diarize": "true"},
}
BILLED = {"number": ["keyterm"], "style": ["punctuate", "numerals"]}
NOT_BILLED = {
    "context", "rewind", "receipt", "utterances", "smart", "stable words", "container", "steps", "voice", "gap",
    "speakers",
}  # fmt: skip
NOT_OF_UPLOADS = {"receipt", "smart"}  # refused on their own
BILLED_LIVE = {"interim_results", "resumable"}
NAMES = st.sets(st.sampled_from(sorted(QUERIES)), max_size=3).filter(lambda names: not {"accurate", "context"} <= names)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that has every feature."""
    model = LoadedModel.of(
        SpellingModel(),
        BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=8),
        "en",
        ("en",),
        grammars={"loud": Titled()},
        passes={(finals, name): ShoutingDecoder() for finals in ("context", "accurate") for name in ("", "loud")},
    )
    key_file, _ = with_keys(tmp_path_factory.mktemp("keys"))
    settings = {"receipt_key_file": key_file, "max_openings_per_s": "off", "speakers": True}
    with LiveServer([model], auxiliary={Auxiliary.SPEAKERS: Voices()}, **settings) as server:
        yield server


def asked_for(names: set[str] | tuple[str, ...]) -> dict[str, str | None]:
    """Return the query of these features."""
    found: dict[str, str | None] = {"encoding": "linear16", "sample_rate": "16000"}
    for name in names:
        found |= QUERIES[name]
    return found


def excluded(asked: dict[str, str | None], *, live: bool) -> list[Exclusion]:
    """Return the rows of the table that refuse a query."""
    request = query(
        urlencode({name: value for name, value in asked.items() if value is not None}), live=live, speakers=True
    )
    rows = [row for row in EXCLUSIONS if not row.yields]
    return [row for row in rows if row.first.counts(request) and row.second.asked(request)]


def billed(names: set[str] | tuple[str, ...], *, live: bool) -> set[str]:
    """Return the features that a usage record names."""
    counted = set(names) - NOT_BILLED - (set() if live else BILLED_LIVE)
    return {feature for name in counted for feature in BILLED.get(name, [name])}


def watched(server: LiveServer, patch: pytest.MonkeyPatch) -> list[Any]:
    """Return what reads the features of each stream and upload from now on."""
    found: list[Any] = []
    begin = server.replica.usage.begin
    patch.setattr(server.replica.usage, "begin", lambda subject, read: (found.append(read), begin(subject, read))[1])
    return found


def check_live(server: LiveServer, names: set[str] | tuple[str, ...]) -> None:
    """Open a stream with these features, and check what becomes of it."""
    asked = asked_for(names)
    rows = excluded(asked, live=True)
    with pytest.MonkeyPatch.context() as patch:
        readings = watched(server, patch)
        if rows:
            with pytest.raises(InvalidStatus) as refused:
                server.listen(**asked)
            assert refused.value.response.status_code == 400
            assert refused.value.response.headers["dg-error"] in [row.text for row in rows]
            return
        with server.listen(**asked) as client:
            audio = np.stack([SPOKEN] * 2, axis=1) if "multichannel" in names else SPOKEN
            client.send(encoded(audio, "wav") if "container" in names else audio)
            text = transcript(client.finish())
        assert set(re.findall(r"\w+", text.lower())) == {"hello"}
        assert set(readings[0]().features) == billed(names, live=True)


def check_upload(server: LiveServer, names: set[str] | tuple[str, ...]) -> None:
    """Upload a recording with these features, and check what becomes of it."""
    names = set(names) - NOT_OF_UPLOADS | {"container"}
    asked = asked_for(names)
    rows = excluded(asked, live=False)
    audio = np.stack([SPOKEN] * 2, axis=1) if "multichannel" in names else SPOKEN
    params = {name: value for name, value in asked.items() if value is not None}
    with pytest.MonkeyPatch.context() as patch, server.http as client:
        readings = watched(server, patch)
        answer = client.post("/v1/listen", params=params, content=encoded(audio, "wav"))
    if rows:
        assert answer.status_code == 400
        assert answer.json()["err_msg"] in [row.text for row in rows]
        return
    assert re.findall(r"\w+", said(answer.json()).lower()) == ["hello"]
    by_default = set[str]() if "context" in names else {"accurate"}
    assert set(readings[0]().features) == billed(names, live=False) | by_default


@settings(max_examples=150)
@given(NAMES)
def test_features_go_together_or_are_refused_by_name(server: LiveServer, names: set[str]) -> None:
    check_live(server, names)


@settings(max_examples=30)
@given(NAMES)
def test_an_upload_ignores_what_only_live_streams_have(server: LiveServer, names: set[str]) -> None:
    check_upload(server, names)


def test_every_pair_that_is_refused_is_refused_by_both_names(server: LiveServer) -> None:
    refused = set()
    for names in [*combinations(QUERIES, 2), ("receipt", "redact", "number")]:
        rows = excluded(asked_for(names), live=True)
        if rows:
            check_live(server, names)
            refused.update(rows)
    assert refused == {row for row in EXCLUSIONS if not row.yields}
    for row in refused:
        parts = (*row.first.name.split("="), *(() if row.second is PACKED else row.second.name.split("=")))
        assert all(part in row.text for part in parts)


@pytest.mark.parametrize(("extra", "yields"), [("", False), ("redact=pci", False), ("resumable=true", True)])
def test_early_words_yield_to_what_excludes_them(extra: str, yields: bool) -> None:
    assert is_excluded(FORKS, query(f"{RAW}&{extra}")) is yields


@pytest.mark.parametrize(
    ("extra", "yields"),
    [
        ("", False),
        ("rewind=5", True),
        ("diarize=true", True),
        ("resumable=true", False),
        ("finals=accurate", False),
        ("finals=accurate&resumable=true", True),
    ],
)
def test_rest_yields_to_what_needs_all_audio(extra: str, yields: bool) -> None:
    assert is_excluded(REST, query(f"{RAW}&{extra}", speakers=True)) is yields


def test_the_page_has_the_table() -> None:
    lines = ["| feature | together with | why | a request for both |", "|---|---|---|---|"]
    for row in EXCLUSIONS:
        outcome = f"is served without {row.first.name}" if row.yields else f"`{row.text}`"
        lines.append(f"| {row.first.name} | {row.second.name} | {row.why} | {outcome} |")
    assert "\n".join(lines) in (REPOSITORY / "docs" / "features.md").read_text()
