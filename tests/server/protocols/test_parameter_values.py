"""Invalid values of every parameter of each protocol, generated from the parameter tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.errors import BadParameter
from server.protocols.deepgram.parameters import BOOLEAN, NUMBER, TABLE, TEXT, TEXTS, Kind, Schema
from server.protocols.openai import endpoint as realtime
from server.protocols.openai.form import HARMLESS, LISTS, MAY_BE_EMPTY, READ, UNSUPPORTED, check_fields
from server.protocols.twilio import endpoint as twilio
from server.protocols.vosk import endpoint as vosk
from server.protocols.vosk.adapter import VoskAdapter
from server.streaming.adapter import Reject
from tests.support.audio.speech import ROOT
from tests.support.protocols.listen_query import query
from tests.support.servers.adapters import RATE
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import spell
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
EMPTY = ("", " ", "\t")
NO_NUMBERS = (
    "nan",
    "NaN",
    "inf",
    "-inf",
    "Infinity",
    "-1",
    "-0.5",
    "1e999",
    "0x10",
    "1_000",
    "٣",
    "²",
    "maybe",
    "null",
)
NO_SWITCHES = ("nan", "inf", "-1", "2", "maybe", "on", "yes", "null", "truefalse")


def impossible(schema: Schema) -> tuple[str, ...]:
    """Return non-empty values that a schema excludes."""
    if schema is BOOLEAN:
        return NO_SWITCHES
    if schema in (TEXT, TEXTS):
        return ()
    if "anyOf" in schema:
        return tuple(value for value in NO_NUMBERS if value not in ("true", "false"))
    if "enum" in schema:
        return ("nan", "inf", "-1", "x", "null")
    if schema is NUMBER:
        return tuple(value for value in NO_NUMBERS if value not in ("1_000", "٣"))
    return (*NO_NUMBERS, "1.5", "1e3", "+5", f"{schema['minimum'] - 1}", f"{schema['maximum'] + 1}", "9" * 30)


def bad_queries() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return for each parameter of `/v1/listen` queries in which only it is invalid."""
    for name, parameter in TABLE.items():
        wrong = (*EMPTY, *impossible(parameter.schema))
        for value in wrong:
            yield name, [(name, value)]
        if not parameter.repeatable:
            for value in ("1", "false"):
                yield name, [(name, value), (name, value)]


@pytest.mark.parametrize(("name", "pairs"), list(bad_queries()))
def test_an_invalid_value_of_a_parameter_is_refused_by_its_name(name: str, pairs: list[tuple[str, str]]) -> None:
    form = [pair for pair in (("encoding", "linear16"), ("sample_rate", "16000")) if pair[0] != name]
    for lenient in (False, True):
        with pytest.raises(BadParameter) as refused:
            query(urlencode(form + pairs), lenient_features=lenient)
        shown = "callback" if name.startswith("callback") and pairs[0][1].strip() else name
        assert str(refused.value).startswith(f"{shown}: ")
        assert len(str(refused.value)) < 400


def test_every_parameter_of_the_table_has_a_kind_and_accepted_ones_are_documented() -> None:
    kinds = {kind: [name for name, p in TABLE.items() if p.kind is kind] for kind in Kind}
    assert all(kinds.values())
    assert "diarize" in kinds[Kind.UNSUPPORTED]
    assert "eot_threshold" in kinds[Kind.OTHER_VERSION]


ADDRESSES = {
    "/vosk": (vosk.QUERY, {}),
    "/v1/realtime": (realtime.QUERY, {"intent": "transcription"}),
    "/v1/twilio": (twilio.OWN | twilio.IN_START, {"reply": "true"}),
}
VALUES = {"sample_rate": NO_NUMBERS, "channels": NO_NUMBERS, "reply": NO_SWITCHES, "multichannel": NO_SWITCHES,
          "language": ("-1", "1.5", "e n"), "finals": ("nan",), "grammar": ("nan",), "intent": ("nan",),
          "redact": ("nan", "name"), "track": ("nan", "none"),
          "encoding": ("nan", "linear16"), "model": ("flux-general-en",)}  # fmt: skip


@pytest.mark.parametrize("path", ADDRESSES)
def test_paths_of_other_protocols_refuse_invalid_values_too(live_server: Start, path: str) -> None:
    server = live_server()
    names, needed = ADDRESSES[path]
    for name in sorted(names):
        given = {key: value for key, value in needed.items() if key != name}
        wrong: list[list[tuple[str, str]]] = [[(name, value)] for value in (*EMPTY, *VALUES.get(name, ()))]
        if name != "redact":  # may be repeated
            wrong.append([(name, needed.get(name, "1")), (name, needed.get(name, "1"))])
        for pairs in wrong:
            with pytest.raises(InvalidStatus) as refused:
                connect(
                    f"ws://{server.host}{path}?{urlencode([*given.items(), *pairs])}",
                    compression=None,
                    open_timeout=WAIT_S,
                )
            assert refused.value.response.status_code == 400, pairs
            body = json.loads(refused.value.response.body)
            message = body["err_msg"] if "err_msg" in body else body["error"]["message"]
            assert message.startswith(f"{name}: "), pairs


def bad_forms() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return for each field of a form fields in which only it is invalid."""
    for name in sorted(READ | HARMLESS | UNSUPPORTED):
        if name not in MAY_BE_EMPTY | UNSUPPORTED:
            yield from ((name, [(name, value)]) for value in EMPTY)
        if name not in LISTS:
            yield name, [(name, "1"), (name, "1")]
    yield from (("temperature", [("temperature", value)]) for value in (*NO_NUMBERS, "1.5"))


@pytest.mark.parametrize(("name", "fields"), [case for case in bad_forms() if case[1][0][1] not in ("1_000", "٣")])
def test_fields_of_a_form_refuse_invalid_values_too(name: str, fields: list[tuple[str, str]]) -> None:
    with pytest.raises(BadParameter, match=f"^{name}: "):
        check_fields(fields, lenient=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "maybe"},
        {"response_format": "nan"},
        {"timestamp_granularities[]": "nan"},
        {"language": "-1"},
        {"languages[]": "-1"},
        {"finals": "nan"},
        {"grammar": "nan"},
        {"redact": "nan"},
        {"temperature": "inf"},
        {"model": "flux-general-en"},
    ],
)
def test_a_posted_form_with_an_invalid_value_is_refused_by_its_name(live_server: Start, fields: dict[str, str]) -> None:
    file = {"file": ("a.wav", encoded(spell("hi"), "WAV"))}
    answer = live_server().http.post("/v1/audio/transcriptions", data=fields, files=file)
    assert answer.status_code == 400
    (name,) = fields
    assert answer.json()["error"]["param"] in (name.removesuffix("[]"), "language")


NO_SETTINGS = (float("nan"), float("inf"), -8_000.0, "nan", "inf", "", "٣", 1e300, {}, [[]])
SETTINGS = ("sample_rate", "max_alternatives", "phrase_list", "words")


@pytest.mark.parametrize("value", NO_SETTINGS)
@pytest.mark.parametrize("name", SETTINGS)
def test_vosk_settings_refuse_invalid_values_too(name: str, value: Any) -> None:
    actions = list(VoskAdapter(RATE).text(json.dumps({"config": {name: value}})))
    assert [type(action) for action in actions] == [Reject]


def test_the_document_for_migration_lists_every_parameter_of_deepgram() -> None:
    section = (ROOT / "docs" / "features.md").read_text().partition("## Coming from Deepgram")[2].partition("\n## ")[0]
    rows = {
        line.split("|")[1].strip(): set(re.findall(r"`([a-z_]+)`", line))
        for line in section.splitlines()
        if "|" in line
    }
    same_or_not = rows["the same"] | rows["differ"]
    for parameter in TABLE.values():
        listed = {
            Kind.HONORED: same_or_not,
            Kind.UNSUPPORTED: rows["refused with 400"] | rows["differ"],
            Kind.OTHER_VERSION: rows["only at `/v2/listen` (Flux)"],
        }.get(parameter.kind, rows["accepted without effect"])
        assert parameter.ours or parameter.name in listed, parameter.name
