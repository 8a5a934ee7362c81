"""Invalid values of every parameter of each protocol, generated from the parameter tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from server.errors import BadParameter
from server.protocols.deepgram.parameters import BOOLEAN, NUMBER, TABLE, TEXT, TEXTS, Kind, Schema
from server.protocols.openai import endpoint as realtime
from server.protocols.openai.form import HARMLESS, LISTS, MAY_BE_EMPTY, READ, UNSUPPORTED, check_fields
from server.protocols.twilio import endpoint as twilio
from server.protocols.vosk import endpoint as vosk
from tests.support.audio.speech import ROOT
from tests.support.protocols.listen_query import query
from tests.support.servers.app_bench import AppBench, text_of

EMPTY = ("", " ", "\t")
NO_NUMBERS = (
    "nan", "NaN", "inf", "-inf", "Infinity", "-1", "-0.5", "1e999", "0x10", "1_000", "٣", "²", "maybe", "null",
)  # fmt: skip
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
            query(urlencode(form + pairs), lenient_features=lenient, speakers=True)
        shown = "callback" if name.startswith("callback") and pairs[0][1].strip() else name
        assert str(refused.value).startswith(f"{shown}: ")
        assert len(str(refused.value)) < 400


def test_every_parameter_of_the_table_has_a_kind_and_accepted_ones_are_documented() -> None:
    kinds = {kind: [name for name, p in TABLE.items() if p.kind is kind] for kind in Kind}
    assert all(kinds.values())
    assert "dictation" in kinds[Kind.UNSUPPORTED]
    assert "eot_threshold" in kinds[Kind.OTHER_VERSION]


ADDRESSES = {
    "/vosk": (vosk.QUERY, {}),
    "/v1/realtime": (realtime.QUERY, {"intent": "transcription"}),
    "/v1/freeswitch": (frozenset({"key", "sample_rate", "channels", "multichannel", "redact"}), {}),
    "/v1/twilio": (twilio.OWN | twilio.IN_START, {"reply": "true"}),
}
VALUES = {"sample_rate": NO_NUMBERS, "channels": NO_NUMBERS, "reply": NO_SWITCHES, "multichannel": NO_SWITCHES,
          "language": ("-1", "1.5", "e n"), "finals": ("nan",), "grammar": ("nan",), "intent": ("nan",),
          "redact": ("nan", "name"), "track": ("nan", "none"),
          "encoding": ("nan", "linear16"), "model": ("flux-general-en",)}  # fmt: skip


@pytest.mark.parametrize("path", ADDRESSES)
def test_paths_of_other_protocols_refuse_invalid_values_too(path: str) -> None:
    server, (names, needed) = AppBench(), ADDRESSES[path]
    for name in sorted(names):
        given = {key: value for key, value in needed.items() if key != name}
        wrong: list[list[tuple[str, str]]] = [[(name, value)] for value in (*EMPTY, *VALUES.get(name, ()))]
        if name != "redact":  # may be repeated
            wrong.append([(name, needed.get(name, "1"))] * 2)
        for pairs in wrong:
            answer = server.handshake(f"{path}?{urlencode([*given.items(), *pairs])}")
            assert (answer.status_code, text_of(answer).partition(": ")[0]) == (400, name), pairs


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
