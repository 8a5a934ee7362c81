"""A rolling restart under turns: clients of the Flux protocol move to another replica by themselves.

deepgram-sdk for Python does not reconnect, neither do tests of it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.ecosystem.agents.test_livekit import END, FINAL, said
from tests.ecosystem.agents.test_pipecat import finals
from tests.ecosystem.driving import Driver, Event
from tests.ecosystem.recordings import Spoken, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, ServerProcess
from tests.ecosystem.wire_rules import check_turns

NAMES = ("livekit", "pipecat")
OPTIONS = {"livekit": {"model": "flux-general-en"}, "pipecat": {}}


@pytest.fixture(scope="module")
def restart(
    doomed_server: ServerProcess, server: ServerProcess, livekit: Driver, pipecat: Driver, spoken: Spoken
) -> Iterator[tuple[dict[str, Relay], dict[str, list[Event]]]]:
    """Each says "order" to the first replica, which stops inside the turn, and something else to the second."""
    order, fan = spoken("order"), spoken("porch_fan", 2.0)
    steps = {
        "livekit": [("push", order), ("signal",), ("push", fan)],
        "pipecat": [("push", order), ("signal",), ("confirmed",), ("push", fan), ("wait", "final", 2)],
    }
    with ExitStack() as stack:
        relays = {name: stack.enter_context(Relay(doomed_server.port)) for name in NAMES}
        drivers = {"livekit": livekit, "pipecat": pipecat}
        for name, driver in drivers.items():
            target = {"host": relays[name].host, "key": KEY, "options": OPTIONS[name]}
            driver.begin("stream", steps=steps[name], turns=True, **target)
        for relay in relays.values():
            relay.wait(lambda relay=relay: relay.connections and in_turn(relay, "order"))
            relay.target = server.port
        doomed_server.drain()
        for name, driver in drivers.items():
            relay = relays[name]
            relay.wait(lambda relay=relay: len(relay.connections) == 2 and relay.connections[1].frames)
            driver.say(go=True)
        yield relays, {name: driver.rest() for name, driver in drivers.items()}


def in_turn(relay: Relay, word: str) -> bool:
    return any(word in frame.get("transcript", "").lower() for frame in relay.connections[0].frames)


@pytest.mark.parametrize("name", NAMES)
def test_the_turn_ends_before_the_restart_and_the_next_is_elsewhere(
    restart: tuple[dict[str, Relay], dict[str, list[Event]]], server: ServerProcess, name: str
) -> None:
    """The first connection ends its turn and closes with 1012 without an `Error`."""
    first, again = restart[0][name].connections
    turns = check_turns(first, text("order"), code=1012)
    assert turns[-1]["event"] == "EndOfTurn"
    check_turns(again, text("porch_fan"), hung_up=name == "pipecat")
    assert again.port == server.port != first.port


def test_livekit_reports_a_recoverable_error(restart: tuple[dict[str, Relay], dict[str, list[Event]]]) -> None:
    events = restart[1]["livekit"]
    assert [event for event in events if event["event"] == "error"] == [
        {"event": "error", "recoverable": True, "status": 1012}
    ]
    assert said(events) == text("order", "porch_fan")
    assert [event["event"] for event in events if event["event"] in (FINAL, END)] == [FINAL, END] * 2


def test_pipecat_stays_usable(restart: tuple[dict[str, Relay], dict[str, list[Event]]]) -> None:
    events = restart[1]["pipecat"]
    assert all(event["usable"] for event in events if event["event"] == "error")
    assert finals(events) == [(text("order"), True), (text("porch_fan"), True)]
