"""Unsupported features: refused by name in every protocol, unless the server is lenient."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from urllib.parse import urlencode

import httpx
import pytest
from structlog.testing import capture_logs

from server.errors import BadParameter
from server.http.api_docs import ABOUT
from server.protocols.deepgram.parameters import PARAMETERS, TABLE, Kind
from server.protocols.features import (
    FEATURES,
    LISTEN,
    MAX_IGNORED,
    OTHER_VERSION,
    SHOWN,
    ignored_header,
    in_plain_names,
    redaction,
)
from server.protocols.flux.messages import parse_query as flux_query
from server.protocols.openai.form import KNOWN, check_fields
from server.protocols.vosk.adapter import VoskAdapter
from server.text.redaction_kinds import Redaction
from tests.support.protocols.listen_query import RAW, query
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.adapters import RATE
from tests.support.servers.app_bench import AppBench, text_of
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
WITH_VALUES = [(name, "2" if name == "alternatives" else "true") for name in sorted(FEATURES | OTHER_VERSION)]
OFF = ("false", "False", "0")
FLUX = [("model", "flux-general-en"), ("encoding", "linear16"), ("sample_rate", "16000")]
SWITCHES = sorted(FEATURES - {"callback", "callback_method"})


@pytest.mark.parametrize(("name", "value"), WITH_VALUES)
def test_an_unsupported_feature_is_refused_by_name(name: str, value: str) -> None:
    shown = "callback" if name.startswith("callback") else name
    for spelled in (name, name.upper(), f"{name}[]"):
        with pytest.raises(BadParameter, match=f"^{shown}: "):
            query(f"{RAW}&{spelled}={value}")
        with pytest.raises(BadParameter, match=f"^{shown}: "):
            check_fields([("file", "x"), (spelled, value)], lenient=False)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_feature_that_is_switched_off_is_not_refused(name: str) -> None:
    for off in OFF:
        assert query(f"{RAW}&{name}={off}").ignored == ()
        assert check_fields([(name, off)], lenient=False) == ()


def test_the_page_lists_as_lacking_what_is_refused_and_nothing_that_is_served() -> None:
    listed = re.findall(r"`(\w+)`", ABOUT.partition("lacks (")[2].partition(")")[0])
    assert set(listed) == FEATURES
    assert not [name for name in listed if name in TABLE and TABLE[name].kind is not Kind.UNSUPPORTED]
    for name in listed:
        with pytest.raises(BadParameter, match="^callback: " if name.startswith("callback") else f"^{name}: "):
            query(f"{RAW}&{name}=2")


COMMON = {  # parameters with a meaning on every path, or none for the text
    "channels", "encoding", "extra", "interim_interval_ms", "interim_results", "language", "model", "redact",
    "sample_rate", "tag",
}  # fmt: skip


def test_every_feature_of_listen_is_refused_on_a_path_that_lacks_it() -> None:
    assert {name for name, parameter in TABLE.items() if parameter.kind is Kind.HONORED} - COMMON == LISTEN
    server = AppBench()
    for name in LISTEN - {"finals", "grammar", "keywords", "multichannel"}:  # which the form has
        with pytest.raises(BadParameter, match=f"^{name}: not supported on this path"):
            check_fields([(name, "5")], lenient=False)
        if name == "rest":  # `false` asks for something, too
            with pytest.raises(BadParameter, match=r"^rest: not supported on this path"):
                check_fields([(name, "false")], lenient=False)
        else:
            assert check_fields([(name, "false")], lenient=False) in ((name,), ())
    for path, having in (("/v1/realtime?intent=transcription&", set()), ("/vosk?", {"finals", "grammar"})):
        for name in LISTEN - having:
            assert text_of(server.handshake(f"{path}{name}=5")).startswith(f"{name}: not supported on this path")


def test_the_plural_of_keyterm_is_keyterm() -> None:
    options = query(f"{RAW}&keyterms=porch&keyterms[]=lamp&keyterm=oak").options
    assert options.keyterms.phrases == ("porch", "lamp", "oak")
    assert flux_query([*FLUX, ("keyterms", "porch"), ("Keyterm", "lamp")]).phrases == ("porch", "lamp")


@pytest.mark.parametrize(("name", "value"), WITH_VALUES)
def test_a_lenient_server_ignores_and_lists_features_except_those_that_would_leak_data(name: str, value: str) -> None:
    if name.startswith(("redact", "callback")):
        with pytest.raises(BadParameter, match=r"^(redact|callback): "):
            query(f"{RAW}&{name}={value}", lenient_features=True)
        with pytest.raises(BadParameter, match=r"^(redact|callback): "):
            check_fields([(name, value)], lenient=True)
    else:
        assert query(f"{RAW}&{name}={value}", lenient_features=True).ignored == (name,)
        assert check_fields([(name, value)], lenient=True) == (name,)


@pytest.mark.parametrize(
    "text",
    [
        "mip_opt_out=true", "no_delay=true", "tag=a&tag=b", "extra=a:b&extra=c:d", "version=latest", "utt_split=0.8",
        "profanity_filter=false&diarize=false&detect_entities=false&dictation=false&numerals=false",
        "unheard_of=false", "alternatives=1",
    ],
)  # fmt: skip
def test_harmless_parameters_are_accepted_silently(text: str) -> None:
    assert query(f"{RAW}&{text}").ignored == ()


def test_ignored_and_unknown_parameters_are_listed() -> None:
    assert query(RAW + "&filler_words=true&unheard_of=1").ignored == ("filler_words", "unheard_of")
    assert query(RAW + "&filler_words=false").ignored == ()


@pytest.mark.parametrize("name", ["{}", "{}[]", "{}[0]"])
def test_a_name_counts_in_any_case_and_with_the_suffix_of_a_list(name: str) -> None:
    for spelled in (name, name.upper(), name.title()):
        for given, field, value in (
            ("punctuate=true", "style.punctuate", True),
            ("redact=ssn", "options.redact", {Redaction.SSN}),
            ("channels=2", "form.channels", 2),
        ):
            plain, _, text = given.partition("=")
            request = query(f"{RAW}&{spelled.format(plain)}={text}")
            assert (attrgetter(field)(request), request.ignored) == (value, ())
            assert attrgetter(field)(query(RAW)) != value
        assert flux_query([*FLUX, (spelled.format("keyterm"), "porch")]).phrases == ("porch",)
        assert redaction([(spelled.format("redact"), "ssn")]) == {Redaction.SSN}, "as at /v2/listen"
        fields = in_plain_names(
            [(spelled.format("language"), "zh"), (spelled.format("chunking_strategy"), "auto")], KNOWN
        )
        assert fields == [("language", "zh"), ("chunking_strategy", "auto")]
    parts = [
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[threshold]", "0.9"),
    ]  # as OpenAI's client does
    assert check_fields(parts, lenient=False) == ("chunking_strategy[threshold]", "chunking_strategy[type]")
    with pytest.raises(BadParameter, match=r"^punctuate: given 2 times"):
        query(f"{RAW}&punctuate=true&Punctuate=false")


def test_every_ignored_name_is_listed_or_counted() -> None:
    names = {"sp ace": "sp%20ace", "söt": "s%C3%B6t", "a,b": "a%2Cb", "x" * 100: "x" * SHOWN, "100%": "100%"}
    assert query(RAW + "&" + urlencode(dict.fromkeys(names, "1"))).ignored == tuple(sorted(names.values()))
    many = query(RAW + "".join(f"&a{number:02}=1" for number in range(MAX_IGNORED + 8))).ignored
    assert ignored_header(many)["x-ignored-params"].endswith(f"a{MAX_IGNORED - 1},and 8 more")


def test_several_languages_at_once_are_an_unsupported_feature() -> None:
    with pytest.raises(BadParameter, match=r"^language: 'multi' is not supported"):
        query(RAW + "&language=multi")
    assert query(RAW + "&language=multi", lenient_features=True).ignored == ("language",)


def test_the_answer_to_a_form_lists_ignored_fields(live_server: Start) -> None:
    server = live_server()
    answer = post(server, temperature="0.2", unheard_of="1", prompt="", keywords="porch")
    assert answer.status_code == 200
    assert answer.headers["x-ignored-params"] == "keywords,temperature,unheard_of"
    unused = post(server, **{"timestamp_granularities[]": "word"})
    assert unused.headers["x-ignored-params"] == "timestamp_granularities", "only verbose_json has them"
    lenient = post(live_server(lenient_features=True), prompt="names of plants", **{"include[]": "logprobs"})
    assert (lenient.status_code, lenient.headers["x-ignored-params"]) == (200, "include,prompt")
    assert "x-ignored-params" not in post(server).headers


def test_the_query_of_a_form_counts_as_fields(live_server: Start) -> None:
    path, server = "/v1/audio/transcriptions", live_server()
    files = {"file": ("a.wav", encoded(spell("hi"), "WAV"))}
    answer = server.http.post(f"{path}?response_format=text&unheard_of=1", files=files)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-ignored-params"] == "unheard_of"
    refused = server.http.post(f"{path}?diarize=true", files=files)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "diarize")


LIVE_ONLY = {
    "interim_results": "true",
    "interim_interval_ms": "300",
    "utterance_end_ms": "1000",
    "vad_events": "true",
    "step_results": "true",
    "stable_words": "true",
    "latency": "true",
    "latency_budget_ms": "200",
    "interim_stability": "high",
    "rewind": "5",
    "resumable": "true",
    "tag": "call-1",
    "wait_in_numbers": "true",
}


def test_the_answer_to_an_upload_lists_every_live_only_parameter(live_server: Start) -> None:
    assert {p.name for p in PARAMETERS if p.live_only} == set(LIVE_ONLY)
    server, body = live_server(), encoded(spell("hi"), "WAV")
    for name, value in LIVE_ONLY.items():
        answer = server.http.post(f"/v1/listen?{name}={value}", content=body)
        assert answer.status_code == 200
        assert answer.headers["x-ignored-params"] == name
        needs = "&endpointing=smart" if name == "wait_in_numbers" else ""
        assert name not in query(f"{RAW}&{name}={value}{needs}").ignored
    off = "interim_results=false&vad_events=0&utterance_end_ms=false&interim_interval_ms=0&resumable=false"
    assert "x-ignored-params" not in server.http.post(f"/v1/listen?{off}", content=body).headers
    assert server.http.post("/v1/listen?latency_budget_ms=1", content=body).status_code == 400


def post(server: LiveServer, **fields: str) -> httpx.Response:
    file = {"file": ("a.wav", encoded(spell("hi"), "WAV"))}
    return server.http.post("/v1/audio/transcriptions", data=fields, files=file)


IGNORED = [
    ("listen", {"diarize": "true", "keyterm": "a", "filler_words": "true"}, "diarize,filler_words,keyterm"),
    ("flux", {"profanity_filter": "true", "smart_format": "true", "diarize": "false"}, "profanity_filter,smart_format"),
    ("openai", {"keyterms": "a", "multichannel": "true", "diarize": "true"}, "diarize,keyterm,multichannel"),
    ("vosk", {"keyterms": "a", "multichannel": "true", "diarize": "true"}, "diarize,keyterm,multichannel"),
    ("twilio", {"encoding": "alaw", "diarize": "true", "unheard_of": "1"}, "diarize,encoding,unheard_of"),
]


def test_ignored_parameters_are_in_the_answer_of_a_lenient_server_and_logged_once(live_server: Start) -> None:
    server = live_server(lenient_features=True)
    with capture_logs() as lines:
        for protocol, query_, ignored in IGNORED * 2:
            with WireStream(server, protocol, **query_) as stream:
                assert stream.socket.response is not None
                assert stream.socket.response.headers["x-ignored-params"] == ignored
    names = [line["name"] for line in lines if line["event"] == "query parameter ignored"]
    listed = ["diarize", "filler_words", "keyterm", "unheard_of"]
    assert sorted(names) == listed, "of the paths with the parameters of listen"
    with WireStream(server, "twilio", track="outbound", encoding="mulaw") as stream:
        assert stream.socket.response is not None
        assert "x-ignored-params" not in stream.socket.response.headers


def test_a_vosk_client_that_switches_features_off_is_served() -> None:
    assert not list(VoskAdapter(RATE).text('{"config": {"sample_rate": 16000, "diarize": 0, "spk_model": null}}'))
