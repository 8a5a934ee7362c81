"""`livekit-plugins-deepgram`, unmodified: only its address is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ecosystem.driving import Driver
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, Spoken, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess
from tests.ecosystem.wire_rules import check_refusal, check_stream
from tests.support.needs import need_package
from tests.support.networks.published import probe_of

Before = Callable[[ServerProcess], Relay]
START, INTERIM, FINAL, END = "START_OF_SPEECH", "INTERIM_TRANSCRIPT", "FINAL_TRANSCRIPT", "END_OF_SPEECH"


def names_of(events: list[dict[str, Any]]) -> list[str]:
    """Return kinds of events, without interims, which a server under load drops, and without usage."""
    return [event["event"] for event in events if event["event"] not in (INTERIM, "RECOGNITION_USAGE")]


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
    strict_server: ServerProcess,
    relay: Before,
    livekit: Driver,
    spoken: Spoken,
    key: str,
    held: list[str],
    status: int,
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


def test_with_a_published_model(relay: Before, livekit: Driver, spoken: Spoken) -> None:
    """A probe with random weights has no readable text: its words must equal those of an upload."""
    need_package("onnx")
    folder = probe_of("zipformer2-ctc").folder
    parts = ("order", 1.6, "porch_fan", 1.6)
    with ServerProcess(model=folder) as server:
        before = relay(server)
        steps = [("push", spoken(*parts))]
        livekit.begin("stream", host=before.host, key=KEY, steps=steps, options={"endpointing_ms": 400})
        livekit.until(lambda event: event["event"] == FINAL)
        before.wait(lambda: before.connections[-1].close_code is not None)
        livekit.say(end=True)
        livekit.rest()
        stream = before.only()
    assert sum(len(frame["channel"]["alternatives"][0]["words"]) for frame in stream.results if frame["is_final"]) > 5
    assert stream.close_code == 1000


def test_turns_of_the_flux_protocol(server: ServerProcess, livekit: Driver, spoken: Spoken) -> None:
    """`STTv2`: an early end of turn is a preflight transcript, and the end has its words."""
    steps = [("push", spoken("order", 2.0)), ("wait", END), ("push", spoken("porch_fan", 2.0)), ("wait", END, 2)]
    options = {"model": "flux-general-en", "eager_eot_threshold": 0.5}
    host = f"127.0.0.1:{server.port}"
    livekit.begin("stream", host=host, key=KEY, steps=steps, options=options, turns=True)
    events = livekit.until(lambda event: event["event"] == END)
    events += livekit.until(lambda event: event["event"] == END)
    livekit.say(end=True)
    events += livekit.rest()
    preflight = "PREFLIGHT_TRANSCRIPT"
    assert [name for name in names_of(events) if name != preflight] == [START, FINAL, END] * 2
    assert said(events) == text("order", "porch_fan")
    early = [plain(event["text"]) for event in events if event["event"] == preflight]
    assert text("order") in early
