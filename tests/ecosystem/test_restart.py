"""A rolling restart: a replica stops, and its clients, which reconnect by themselves, move to another replica.

`deepgram-sdk` for Python does not reconnect: `deepgram/test_deepgram_sdk.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.ecosystem.agents.test_livekit import END, FINAL, finish, said
from tests.ecosystem.agents.test_pipecat import finals
from tests.ecosystem.driving import Driver, Event
from tests.ecosystem.recordings import Spoken, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, ServerProcess
from tests.ecosystem.wire_rules import check_stream

NAMES = ("node", "livekit", "pipecat")
OPTIONS = {"model": "nova-3", "encoding": "linear16", "sample_rate": 16_000, "interim_results": "true"}


@dataclass(frozen=True)
class Restart:
    """Events of each client, and the bytes sent to it."""

    relays: dict[str, Relay]
    events: dict[str, list[Event]]
    second_port: int


@pytest.fixture(scope="module")
def restart(
    doomed_server: ServerProcess,
    server: ServerProcess,
    node: Driver,
    livekit: Driver,
    pipecat: Driver,
    spoken: Spoken,
) -> Iterator[Restart]:
    """Each says "order" to the first replica, which stops then, and something else to the second."""
    with ExitStack() as stack:
        relays = {name: stack.enter_context(Relay(doomed_server.port)) for name in NAMES}
        targets = {name: {"host": relay.host, "key": KEY} for name, relay in relays.items()}
        order, fan, name = spoken("order"), spoken("porch_fan"), spoken("name")
        node.begin("talk", **targets["node"], parts=[order, fan], options=OPTIONS)
        livekit.begin("stream", **targets["livekit"], steps=[("push", order), ("signal",), ("push", fan)])
        steps = [
            ("start",),
            ("push", order),
            ("signal",),
            ("connected",),
            ("push", name),
            ("stop",),
            ("wait", "final", 2),
        ]
        pipecat.begin("stream", **targets["pipecat"], steps=steps)
        for relay in relays.values():
            relay.wait(lambda relay=relay: relay.connections and relay.connections[0].sent_word("order"))
            relay.target = server.port
        doomed_server.drain()
        for driver, relay in ((livekit, relays["livekit"]), (pipecat, relays["pipecat"])):
            relay.wait(lambda relay=relay: [c.status for c in relay.connections] == [101, 101])
            driver.say(go=True)
        events = {"livekit": finish(livekit, relays["livekit"], ends=2), "pipecat": pipecat.rest(), "node": node.rest()}
        yield Restart(relays, events, server.port)


@pytest.mark.parametrize("name", NAMES)
def test_every_client_continues_at_the_other_replica(restart: Restart, name: str) -> None:
    """Two connections: the first with the text so far and 1012, the second to the other replica."""
    hung_up, second = name == "pipecat", "name" if name == "pipecat" else "porch_fan"
    first, again = restart.relays[name].connections
    check_stream(first, text("order"), code=1012)
    check_stream(again, text(second), hung_up=hung_up)
    assert again.port == restart.second_port != first.port


def test_the_javascript_sdk_reports_the_restart_and_does_not_reconnect_after_a_normal_close(restart: Restart) -> None:
    events = restart.events["node"]
    kinds = [event["event"] for event in events if event["event"] != "message"]
    assert kinds == ["open", "close", "open", "close", "waiting"]
    assert [event["code"] for event in events if event["event"] == "close"] == [1012, 1000]
    assert events[-1]["timers"] == 0


def test_livekit_reports_a_recoverable_error(restart: Restart) -> None:
    events = restart.events["livekit"]
    errors = [event for event in events if event["event"] == "error"]
    assert errors == [{"event": "error", "recoverable": True, "status": 1012}]
    assert said(events) == text("order", "porch_fan")
    assert [event["event"] for event in events if event["event"] in (FINAL, END)] == [FINAL, END] * 2


def test_pipecat_reports_an_error_and_stays_usable(restart: Restart) -> None:
    events = restart.events["pipecat"]
    errors = [event for event in events if event["event"] == "error"]
    assert errors
    assert "1012" in errors[0]["error"]
    assert all(error["usable"] for error in errors)
    assert finals(events) == [(text("order"), False), (text("name"), True)]
