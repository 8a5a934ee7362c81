"""`@deepgram/sdk` on node, and `ws` with a browser's way of authentication; both unmodified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ecosystem.driving import Driver
from tests.ecosystem.holding import Holders
from tests.ecosystem.recordings import BYTES_PER_S, Spoken, audio, plain, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, OTHER_KEY, THIRD_KEY, ServerProcess
from tests.ecosystem.wire_rules import REFUSED, check_refusal, check_stream, check_turns

Before = Callable[[ServerProcess], Relay]
SAID = ("order", "porch_fan")
PARTS = ("order", 1.6, "porch_fan")
OPTIONS: dict[str, Any] = {
    "model": "nova-3",
    "encoding": "linear16",
    "sample_rate": 16_000,
    "interim_results": "true",
    "smart_format": "true",
    "utterance_end_ms": 1_000,
    "vad_events": "true",
    "keyterm": ["porch fan", "garden gate"],
}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


def test_a_stream(server: ServerProcess, relay: Before, node: Driver, spoken: Spoken) -> None:
    before = relay(server)
    events = node.run("talk", host=before.host, key=KEY, parts=[spoken(*PARTS)], options=OPTIONS)
    assert kinds(events)[0] == "open"
    assert kinds(events)[-2:] == ["close", "waiting"]
    assert set(kinds(events)[1:-2]) == {"message"}
    messages = [event["message"] for event in events[1:-2]]
    assert messages[0]["type"] == "SpeechStarted"
    assert messages[-1]["type"] == "Metadata"
    assert [m["type"] for m in messages].count("UtteranceEnd") == 1
    results = [m for m in messages if m["type"] == "Results"]
    assert sum(m["from_finalize"] for m in results) == 1
    finals = [m["channel"]["alternatives"][0]["transcript"] for m in results if m["is_final"]]
    assert plain(" ".join(finals)) == text(*SAID)
    assert events[-2]["code"] == 1000
    assert events[-1]["timers"] == 0, "it would reconnect"
    check_stream(before.only(), text(*SAID), seconds=len(audio(*PARTS)) / BYTES_PER_S)


def test_turns_of_the_flux_protocol(server: ServerProcess, relay: Before, node: Driver, spoken: Spoken) -> None:
    """`listen.v2`: silence ends the first turn, `sendForceEndTurn` the second, and `sendConfigure` is answered."""
    before = relay(server)
    options = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": 16_000, "eager_eot_threshold": 0.5}
    configure = {"thresholds": {"eot_threshold": 0.95}, "keyterms": ["porch fan"]}
    spoken_audio = spoken("order", 2.0, "porch_fan")
    events = node.run("turns", host=before.host, key=KEY, audio=spoken_audio, options=options, configure=configure)
    assert kinds(events)[-1] == "close"
    assert events[-1]["code"] == 1000
    messages = [event["message"] for event in events[:-1]]
    stream = before.only()
    assert messages == stream.frames
    turns = check_turns(stream, text(*SAID))
    assert [turn["trigger"] for turn in turns if turn["event"] == "EndOfTurn"] == ["model", "manual"]
    (configured,) = (message for message in messages if message["type"] == "ConfigureSuccess")
    assert configured["thresholds"] == {"eot_threshold": 0.95, "eot_timeout_ms": 5_000, "eager_eot_threshold": 0.5}
    assert configured["keyterms"] == ["porch fan"]


@pytest.mark.parametrize(("key", "options", "status", "held"), REFUSED)
def test_a_refusal_is_an_error(
    strict_server: ServerProcess,
    relay: Before,
    node: Driver,
    spoken: Spoken,
    key: str,
    options: dict[str, Any],
    status: int,
    held: list[str],
) -> None:
    """Its text has the status; a close event that the client invents precedes it. It does not retry by itself."""
    before = relay(strict_server)
    with Holders(strict_server, held):
        events = node.run("talk", host=before.host, key=key, parts=[spoken("yes")], options=OPTIONS | options)
    assert kinds(events) == ["close", "error", "waiting"]
    assert events[1]["message"] == f"Unexpected server response: {status}"
    assert events[-1]["timers"] == 0
    check_refusal(before.only(), status)


def test_a_full_server_is_retried(strict_server: ServerProcess, relay: Before, node: Driver, spoken: Spoken) -> None:
    """It retries when its user calls `connect` again."""
    before = relay(strict_server)
    with Holders(strict_server, [KEY, OTHER_KEY]) as held:
        node.begin("talk", host=before.host, key=THIRD_KEY, parts=[spoken("order")], options=OPTIONS, again=True)
        node.until(lambda event: event["event"] == "error")
        held.release()
        node.say(go=True)
        events = node.rest()
    assert [connection.status for connection in before.connections] == [503, 101]
    assert events[-2]["code"] == 1000
    check_stream(before.connections[-1], text("order"))


@pytest.mark.parametrize("scheme", ["token", "bearer"])
def test_ws_is_admitted_by_its_subprotocol(server: ServerProcess, relay: Before, node: Driver, scheme: str) -> None:
    """The server echoes the scheme, or the client fails; the key is in nothing that the server sends or logs."""
    before = relay(server)
    query = "encoding=linear16&sample_rate=16000"
    events = node.run("subprotocol", host=before.host, key=KEY, query=query, scheme=scheme)
    assert kinds(events) == ["open", "message", "message", "close"]
    assert events[0]["protocol"] == scheme
    assert events[0]["extensions"] == "", "compression was offered, and is declined"
    assert events[-1]["code"] == 1000
    stream = before.only()
    assert stream.headers["sec-websocket-protocol"] == scheme
    assert KEY.encode() in bytes(stream.sent)
    assert KEY.encode() not in bytes(stream.received)
    assert stream.headers["dg-request-id"] in server.log
    assert KEY not in server.log


@pytest.mark.parametrize(
    ("key", "origin", "status"), [("nobodys-key", "", 401), (KEY, "http://elsewhere.example", 403)]
)
def test_ws_is_refused(server: ServerProcess, relay: Before, node: Driver, key: str, origin: str, status: int) -> None:
    """With a wrong key, and with a valid one from a web page that is not allowed."""
    before = relay(server)
    events = node.run("subprotocol", host=before.host, key=key, query="", scheme="token", origin=origin)
    assert kinds(events) == ["error", "close"]
    assert events[0]["message"] == f"Unexpected server response: {status}"
    check_refusal(before.only(), status)
    assert key not in server.log
