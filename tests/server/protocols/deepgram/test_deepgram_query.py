"""Parser of Deepgram's query and of text frames, as tables."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from server.audio.formats import AudioForm, Encoding
from server.errors import BadParameter
from server.http.api_docs import ABOUT
from server.protocols.deepgram.parameters import PARAMETERS, TABLE
from server.protocols.deepgram.query import BIASING
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.segments.endpointing import SMART_END
from server.recognition.session_options import SessionOptions
from tests.support.protocols.listen_query import RAW, query

MODEL_RATE = 16_000

# Queries of real clients.
PYTHON_SDK = (
    "channels=1&encoding=linear16&endpointing=300&interim_results=true&keyterm=foo+bar&keyterm=baz&model=nova-3"
    "&sample_rate=16000&smart_format=true&utterance_end_ms=1000&vad_events=true"
)
LIVEKIT = (
    "model=nova-3&punctuate=true&smart_format=false&no_delay=true&interim_results=true&encoding=linear16"
    "&vad_events=true&sample_rate=16000&channels=1&endpointing=25&filler_words=true&profanity_filter=false"
    "&numerals=false&mip_opt_out=false&language=en-US"
)
PIPECAT = (
    "channels=1&detect_entities=false&diarize=false&dictation=false&encoding=linear16&interim_results=true&language=en"
    "&model=nova-3-general&multichannel=false&numerals=false&punctuate=true&sample_rate=16000&smart_format=true"
)


@pytest.mark.parametrize(
    ("text", "options", "ignored"),
    [
        (RAW, SessionOptions(16_000), ()),
        (
            PYTHON_SDK,
            SessionOptions(
                16_000,
                partials=True,
                endpointing_ms=300,
                utterance_end_ms=1_000,
                keyterms=Keyterms.of(["foo bar", "baz"]),
                speech_events=True,
            ),
            (),
        ),
        (
            LIVEKIT,
            SessionOptions(16_000, partials=True, endpointing_ms=25, speech_events=True, language="en-US"),
            ("filler_words",),
        ),
        (PIPECAT, SessionOptions(16_000, partials=True, language="en"), ()),
        (RAW + "&stable_words=true", SessionOptions(16_000, tell_stable=True), ()),
        (RAW + "&interim_interval_ms=200", SessionOptions(16_000, partial_interval_ms=200), ()),
        (RAW + "&interim_stability=high", SessionOptions(16_000, interim_stability="high"), ()),
        (RAW + "&vad_events=true", SessionOptions(16_000, speech_events=True), ()),
        (RAW + "&endpointing=false", SessionOptions(16_000, endpointing_ms=None), ()),
        (RAW + "&endpointing=true", SessionOptions(16_000, endpointing_ms=10), ()),
        (RAW + "&interim_results=1&step_results=True", SessionOptions(16_000, partials=True, every_step=True), ()),
        (RAW + "&channels=2&multichannel=true", SessionOptions(16_000, 2, multichannel=True), ()),
        (RAW + "&channels=8", SessionOptions(16_000, 8), ()),
        ("encoding=linear16&sample_rate=8000", SessionOptions(8_000), ()),
        (
            RAW + "&unheard_of=1&sp%20ace=1&bad%0aname=2",
            SessionOptions(16_000),
            ("bad%0Aname", "sp%20ace", "unheard_of"),
        ),
    ],
)
def test_a_query_becomes_options(text: str, options: SessionOptions, ignored: tuple[str, ...]) -> None:
    request = query(text)
    assert request.options == options
    assert request.ignored == ignored


def test_tags_are_cut_in_length_and_number_and_stripped_of_line_breaks() -> None:
    request = query(RAW + "&tag=a&tag=b%0Ac&" + "&".join(["tag=" + "x" * 100] * 20))
    assert request.tags[:3] == ("a", "b?c", "x" * 64)
    assert len(request.tags) == 8


def test_the_description_has_every_parameter_once_in_its_table() -> None:
    first_cells = [line.split(" | ")[0] for line in ABOUT.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`( \(ours\))?", " ".join(first_cells))
    assert named == [(parameter.name, " (ours)" * parameter.ours) for parameter in PARAMETERS]
    assert "| `channels`, `multichannel` | 1, `false` | interleaved channels, mixed down" in ABOUT
    assert "| `encoding`, `sample_rate` | – | `linear16`" in ABOUT


def test_no_parameter_of_the_table_is_reported_as_ignored() -> None:
    form = {"encoding": "linear16", "sample_rate": "16000"}
    values = {
        parameter.name: "1" if parameter.schema.get("type") in ("integer", "number", "string", "array") else "false"
        for parameter in PARAMETERS
    } | form
    values |= {"latency_budget_ms": "20", "finals": "fast", "interim_stability": "low"}
    values |= {"diarize_model": "latest", "speaker": "first", "extra": "a:b"}
    assert query(urlencode(values), speakers=True).ignored == ()


@pytest.mark.parametrize(
    ("name", "schema"),
    [(p.name, s) for p in PARAMETERS for s in p.schema.get("anyOf", [p.schema]) if "maximum" in s],
)
def test_whole_numbers_are_accepted_only_within_the_bounds_of_the_schema(name: str, schema: dict) -> None:
    form = "encoding=linear16&" if name == "sample_rate" else RAW + "&"
    for value in (schema["minimum"], schema["maximum"]):
        query(f"{form}{name}={value}", speakers=True)
    for value in (schema["minimum"] - 1, schema["maximum"] + 1):
        with pytest.raises(BadParameter, match=f"^{name}: "):
            query(f"{form}{name}={value}", speakers=True)


def test_key_terms_are_ignored_if_the_decoder_does_not_support_them() -> None:
    assert TABLE.keys() > BIASING
    assert query(RAW + "&keyterm=a&keywords=b", supports_keyterms=False).ignored == ("keyterm", "keywords")


def test_an_upload_needs_no_rate_and_has_no_endpoints_unless_requested() -> None:
    request = query("model=nova-3", live=False)
    assert (request.form, request.options.endpointing_ms) == (AudioForm(Encoding.CONTAINER, None), None)
    assert query("endpointing=500", live=False).options.endpointing_ms == 500


def test_smart_endpointing_is_a_score_and_not_a_time() -> None:
    options = query(f"{RAW}&endpointing=smart").options
    assert (options.endpointing_ms, options.scored_end) == (0.0, SMART_END)
    assert query(f"{RAW}&endpointing=300").options.scored_end is None
    with pytest.raises(BadParameter, match="endpointing: smart is for live streams"):
        query(f"{RAW}&endpointing=smart", live=False)
