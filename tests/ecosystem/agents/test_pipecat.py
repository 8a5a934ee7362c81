"""`pipecat-ai`'s DeepgramSTTService, unmodified, in a pipeline: only its address is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadtest.rulers.voice import Voice
from tests.ecosystem.driving import Driver
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, FILES, Spoken, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess
from tests.ecosystem.wire_rules import check_refusal, check_stream, check_turns

Before = Callable[[ServerProcess], Relay]
VOICE = Voice()


def names_of(events: list[dict[str, Any]]) -> list[str]:
    """Return kinds of events, without interims, which a server under load drops, and without usage."""
    return [event["event"] for event in events if event["event"] not in ("interim", "usage")]


def used_s(events: list[dict[str, Any]]) -> float:
    """Return the seconds of audio in its usage metrics."""
    return float(sum(event["seconds"] for event in events if event["event"] == "usage"))


def finals(events: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(plain(event["text"]), event["finalized"]) for event in events if event["event"] == "final"]


def test_a_stream(server: ServerProcess, relay: Before, pipecat: Driver, spoken: Spoken) -> None:
    """The answer to the VAD's end of speech is marked as finalized."""
    before = relay(server)
    steps: list[tuple[Any, ...]] = [
        ("start",),
        ("push", spoken("order")),
        ("wait", "interim"),
        ("stop",),
        ("wait", "final"),
    ]
    steps += [("start",), ("push", spoken("name")), ("stop",), ("wait", "final", 2)]
    events = pipecat.run("stream", host=before.host, key=KEY, steps=steps)
    assert names_of(events) == ["started"] + ["measured", "final"] * 2
    assert finals(events) == [(text("order"), True), (text("name"), True)]
    seconds = len(audio("order", "name")) / BYTES_PER_S
    assert [event["event"] for event in events if event["event"] in ("usage", "final")] == ["usage", "final"] * 2
    assert used_s(events) == pytest.approx(seconds, abs=0.02)  # its last piece may be shorter
    check_stream(before.only(), text("order", "name"), seconds=seconds, hung_up=True)


def test_an_empty_answer_confirms_the_finalize(
    server: ServerProcess, relay: Before, pipecat: Driver, spoken: Spoken
) -> None:
    """The server's own endpoint had all words; the client need not wait for its timeout."""
    before = relay(server)
    steps = [("start",), ("push", spoken("order", 1.6)), ("wait", "final"), ("stop",), ("wait", "measured")]
    events = pipecat.run("stream", host=before.host, key=KEY, steps=steps)
    assert names_of(events) == ["started", "final", "measured"]
    assert finals(events) == [(text("order"), False)]
    stream = before.only()
    check_stream(stream, text("order"), hung_up=True)
    answers = [frame for frame in stream.results if frame["from_finalize"]]
    assert [frame["channel"]["alternatives"][0]["transcript"] for frame in answers] == [""]


@pytest.mark.parametrize(
    ("key", "options", "held", "status"),
    [("unknown key", {}, [], 401), (KEY, {"encoding": "g729"}, [], 400), (KEY, {}, [KEY], 429)],
)
def test_a_4xx_is_final(
    strict_server: ServerProcess,
    relay: Before,
    pipecat: Driver,
    spoken: Spoken,
    key: str,
    options: dict[str, Any],
    held: list[str],
    status: int,
) -> None:
    before = relay(strict_server)
    with Holders(strict_server, held):
        events = pipecat.run("stream", host=before.host, key=key, steps=[("wait", "error")], options=options)
    errors = [event for event in events if event["event"] == "error"]
    assert len(errors) == 1
    assert str(status) in errors[0]["error"]
    assert not errors[0]["usable"]
    check_refusal(before.only(), status)


def test_it_retries_a_full_server(strict_server: ServerProcess, relay: Before, pipecat: Driver, spoken: Spoken) -> None:
    before = relay(strict_server)
    steps = [("start",), ("push", spoken("order")), ("stop",), ("wait", "final")]
    with Holders(strict_server, [KEY, OTHER_KEY]) as holders:
        pipecat.begin("stream", host=before.host, key=THIRD_KEY, steps=steps)
        before.wait(lambda: before.connections and before.connections[0].over)
        holders.release()
        events = pipecat.rest()
    check_refusal(before.connections[0], 503)
    assert len(before.connections) == 2
    assert all(event["usable"] for event in events if event["event"] == "error")
    assert finals(events) == [(text("order"), True)]
    check_stream(before.connections[-1], text("order"), hung_up=True)


def test_turns_of_the_flux_protocol(server: ServerProcess, relay: Before, pipecat: Driver, spoken: Spoken) -> None:
    """`DeepgramFluxSTTService`, with early ends of turns: each turn is one finalized transcript."""
    before = relay(server)
    steps = [
        ("push", spoken("order", 2.0)),
        ("wait", "final"),
        ("push", spoken("porch_fan", 2.0)),
        ("wait", "final", 2),
    ]
    options = {"enable_eager_end_of_turn": True}
    events = pipecat.run("stream", host=before.host, key=KEY, steps=steps, options=options, turns=True)
    assert finals(events) == [(text("order"), True), (text("porch_fan"), True)]
    assert any(event["event"] == "interim" for event in events)
    turns = check_turns(before.only(), text("order", "porch_fan"), hung_up=True)
    early = [plain(turn["transcript"]) for turn in turns if turn["event"] == "EagerEndOfTurn"]
    assert [plain(event["text"]) for event in events if event["event"] == "eager"] == early
    assert text("order") in early


SPOKEN = [(name, 2.0) for name in FILES if "8khz" not in name]


@pytest.mark.parametrize("parts", [*SPOKEN, ("order", 0.6, "porch_fan", 1.0, "name", 2.0)])
def test_the_rulers_stops_are_those_of_its_detector(pipecat: Driver, spoken: Spoken, parts: tuple[Any, ...]) -> None:
    """`tutti loadtest --ruler ttfs` sends `Finalize` at the pieces at which its stt-benchmark does."""
    found = [event["piece"] for event in pipecat.run("stops", audio=spoken(*parts))]
    assert list(VOICE.stops(np.frombuffer(audio(*parts), np.int16))) == found
