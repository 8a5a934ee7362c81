"""`livekit-plugins-deepgram`, unmodified: only its address is changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.ecosystem.driving import Driver
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, Spoken, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess
from tests.ecosystem.wire_rules import check_refusal, check_stream, check_turns

Before = Callable[[ServerProcess], Relay]
START, INTERIM, FINAL, END = "START_OF_SPEECH", "INTERIM_TRANSCRIPT", "FINAL_TRANSCRIPT", "END_OF_SPEECH"
PREFLIGHT = "PREFLIGHT_TRANSCRIPT"  # an early end of turn
USAGE = "RECOGNITION_USAGE"


def names_of(events: list[dict[str, Any]]) -> list[str]:
    """Return kinds of events, without interims, which a server under load drops, and without usage."""
    return [event["event"] for event in events if event["event"] not in (INTERIM, USAGE)]


def used_s(events: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of audio of each usage event."""
    return [event["seconds"] for event in events if event["event"] == USAGE]


def said(events: list[dict[str, Any]]) -> str:
    return plain(" ".join(event["text"] for event in events if event["event"] == FINAL))


def finish(livekit: Driver, before: Relay, ends: int = 1) -> list[dict[str, Any]]:
    """Let the stream end by itself, then the client; return all events from here."""
    events: list[dict[str, Any]] = []
    for _ in range(ends):
        events += livekit.until(lambda event: event["event"] == END)
    before.wait(lambda: before.connections[-1].close_code is not None)
    livekit.say(end=True)
    return events + livekit.rest()


def test_a_stream(server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken) -> None:
    before = relay(server)
    parts = ("order", 1.6, "porch_fan", 1.6)
    options = {"keyterm": ["porch fan"], "smart_format": True, "endpointing_ms": 400}
    steps = [("push", spoken(*parts[:1])), ("wait", INTERIM), ("push", spoken(*parts[1:]))]
    livekit.begin("stream", host=before.host, key=KEY, steps=steps, options=options)
    events = finish(livekit, before, ends=2)
    assert names_of(events) == [START, FINAL, END] * 2
    assert said(events) == text("order", "porch_fan")
    finals = [event for event in events if event["event"] == FINAL]
    assert finals[0]["text"][0].isupper()
    stream = before.only()
    assert sum(used_s(events)) >= len(audio(*parts)) / BYTES_PER_S - 0.02  # or as long as the connection was open
    assert {event["request_id"] for event in finals} == {stream.headers["dg-request-id"]}
    assert [word for final in finals for word, *_ in final["words"]] == " ".join(f["text"] for f in finals).split()
    assert sum(frame["from_finalize"] for frame in stream.results) == 1
    check_stream(stream, text("order", "porch_fan"), seconds=len(audio(*parts)) / BYTES_PER_S)


def test_a_flush_ends_the_speech(server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken) -> None:
    """Also without an endpoint."""
    before = relay(server)
    steps = [("push", spoken("order")), ("flush",), ("wait", END, 1), ("push", spoken("yes")), ("flush",)]
    livekit.begin("stream", host=before.host, key=KEY, steps=steps, options={"endpointing_ms": 0})
    events = finish(livekit, before, ends=2)
    assert names_of(events) == [START, FINAL, END] * 2
    check_stream(before.only(), text("order", "yes"))


def test_a_flush_ends_the_speech_with_an_empty_answer(
    strict_server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken
) -> None:
    """Its words were in an earlier final that did not end the speech: the utterance reached its maximum length."""
    before = relay(strict_server)
    steps = [("push", spoken("order", 2.4)), ("wait", FINAL), ("flush",)]
    livekit.begin("stream", host=before.host, key=KEY, steps=steps, options={"endpointing_ms": 0})
    events = finish(livekit, before)
    assert names_of(events) == [START, FINAL, END]
    stream = before.only()
    check_stream(stream, text("order"))
    worded, answer = [frame for frame in stream.results if frame["is_final"]][:2]
    assert not worded["speech_final"]
    assert answer["from_finalize"]
    assert answer["speech_final"]
    assert answer["channel"]["alternatives"][0]["words"] == []


def test_a_recording(server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken) -> None:
    before = relay(server)
    (event,) = livekit.run("recognize", host=before.host, key=KEY, audio=spoken("garden_gate"))
    assert said([event]) == text("garden_gate")
    assert [word for word, *_ in event["words"]] == event["text"].split()
    assert event["request_id"] == before.only().headers["dg-request-id"]


@pytest.mark.parametrize(("key", "options", "status"), [("unknown key", {}, 401), (KEY, {"sample_rate": 4_000}, 400)])
def test_a_lasting_refusal_is_an_error_at_once(
    server: ServerProcess,
    relay: Before,
    livekit: Driver,
    spoken: Spoken,
    key: str,
    options: dict[str, Any],
    status: int,
) -> None:
    before = relay(server)
    events = livekit.run("stream", host=before.host, key=key, steps=[("push", spoken("yes"))], options=options)
    assert events == [
        {"event": "error", "recoverable": False, "status": status},
        {"event": "raised", "type": "APIStatusError", "status": status},
    ]
    check_refusal(before.only(), status)


@pytest.mark.parametrize(("key", "held", "status"), [(KEY, [KEY], 429), (THIRD_KEY, [KEY, OTHER_KEY], 503)])
def test_it_retries_a_full_server(
    strict_server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken, key: str, held: list[str], status: int
) -> None:
    """It loses no audio from the wait."""
    before = relay(strict_server)
    with Holders(strict_server, held) as holders:
        livekit.begin("stream", host=before.host, key=key, steps=[("push", spoken("order"))])
        refusals = livekit.until(lambda event: event["event"] == "error")
        holders.release()
        events = finish(livekit, before)
    assert refusals == [{"event": "error", "recoverable": True, "status": status}]
    check_refusal(before.connections[0], status)
    assert len(before.connections) == 2
    assert names_of(events) == [START, FINAL, END]
    check_stream(before.connections[-1], text("order"))


def order_of(events: list[dict[str, Any]]) -> list[str]:
    """Return kinds of events in order, equal ones that follow each other once, without usage."""
    names = [event["event"] for event in events if event["event"] != USAGE]
    return [name for name, _ in itertools.groupby(names)]


def test_turns_of_the_flux_protocol(server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken) -> None:
    """`STTv2`: an early end of turn is a preflight transcript, and the end has its words."""
    before = relay(server)
    steps = [("push", spoken("order", 2.0)), ("wait", END), ("push", spoken("porch_fan", 2.0)), ("wait", END, 2)]
    options = {"model": "flux-general-en", "eager_eot_threshold": 0.5}
    events = livekit.run("stream", host=before.host, key=KEY, steps=steps, options=options, turns=True)
    assert said(events) == text("order", "porch_fan")
    assert sum(used_s(events)) == pytest.approx(len(audio("order", 2.0, "porch_fan", 2.0)) / BYTES_PER_S, abs=0.02)
    for turn in (events[: [e["event"] for e in events].index(END) + 1], events):
        names = order_of(turn)
        assert names[:3] == [START, INTERIM, PREFLIGHT]
        assert names[-2:] == [FINAL, END]
    early = [plain(event["text"]) for event in events if event["event"] == PREFLIGHT]
    assert text("order") in early
    turns = check_turns(before.only(), text("order", "porch_fan"))
    assert early == [plain(turn["transcript"]) for turn in turns if turn["event"] == "EagerEndOfTurn"]


def test_usage_by_openais_protocol(server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken) -> None:
    """`livekit-plugins-openai`: the usage of each final is the time from the start of its speech to its end."""
    before = relay(server)
    parts = ("order", 1.6, "porch_fan", 1.6)
    events = livekit.run("realtime", host=before.host, key=KEY, audio=spoken(*parts), finals=2)
    assert said(events) == text("order", "porch_fan")
    assert names_of(events) == [START, END, FINAL] * 2
    for name, seconds in zip(("order", "porch_fan"), used_s(events), strict=True):
        assert 0.5 < seconds < len(audio(name, 1.6)) / BYTES_PER_S


def test_options_of_turns_change_in_the_stream(
    server: ServerProcess, relay: Before, livekit: Driver, spoken: Spoken
) -> None:
    """`update_options` sends `Configure` on the open connection: the second turn ends at the timeout."""
    before = relay(server)
    changed = {"eot_threshold": 0.9, "eot_timeout_ms": 600, "keyterms": ["porch fan"]}
    steps: list[tuple[Any, ...]] = [("push", spoken("order", 2.0)), ("wait", END), ("update", changed), ("signal",)]
    steps += [("push", spoken("porch_fan", 2.0)), ("wait", END, 2)]
    options = {"model": "flux-general-en"}
    livekit.begin("stream", host=before.host, key=KEY, steps=steps, options=options, turns=True)
    events = livekit.until(lambda event: event["event"] == END)
    before.wait(lambda: any(frame["type"] == "ConfigureSuccess" for frame in before.connections[0].frames))
    livekit.say(go=True)
    events += livekit.rest()
    assert said(events) == text("order", "porch_fan")
    stream = before.only()
    turns = check_turns(stream, text("order", "porch_fan"))
    assert [turn["trigger"] for turn in turns if turn["event"] == "EndOfTurn"] == ["model", "timeout"]
    (configured,) = (frame for frame in stream.frames if frame["type"] == "ConfigureSuccess")
    assert configured["thresholds"] == {"eot_threshold": 0.9, "eot_timeout_ms": 600}
    assert configured["keyterms"] == ["porch fan"]
