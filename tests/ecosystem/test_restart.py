"""A rolling restart: a replica stops, and its clients, which reconnect by themselves, move to another replica.

`deepgram-sdk` for Python does not reconnect: `deepgram/test_deepgram_sdk.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.ecosystem.agents.test_livekit import END, FINAL, finish, said
from tests.ecosystem.agents.test_pipecat import finals
from tests.ecosystem.driving import Driver, Event
from tests.ecosystem.recordings import Spoken, text
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import KEY, ROOT, ServerProcess
from tests.ecosystem.wire_rules import check_stream, check_turns
from tests.support.deployment.edge import closed_port

NAMES = ("node", "livekit", "pipecat")
OPTIONS = {"model": "nova-3", "encoding": "linear16", "sample_rate": 16_000, "interim_results": "true"}


class Restart(NamedTuple):
    """Events of each client, and the bytes sent to it."""

    relays: dict[str, Relay]
    events: dict[str, list[Event]]
    second_port: int


def restarted(drivers: dict[str, Driver], scenarios: dict[str, dict[str, Any]], port: int) -> Iterator[Restart]:
    """Each says "order" to the first replica, which stops then, and something else to the second, at this port."""
    with ExitStack() as stack:
        first = stack.enter_context(ServerProcess(drain_timeout_s=0))
        relays = {name: stack.enter_context(Relay(first.port)) for name in scenarios}
        for name, scenario in scenarios.items():
            drivers[name].begin(host=relays[name].host, key=KEY, **scenario)
        for relay in relays.values():
            relay.wait(lambda relay=relay: relay.connections and relay.connections[0].sent_word("order"))
            relay.target = port
        first.drain()
        for name, relay in relays.items():
            relay.wait(lambda relay=relay: [c.status for c in relay.connections] == [101, 101])
            if name != "node":
                drivers[name].say(go=True)
        events = {}
        for name, scenario in scenarios.items():
            ends_itself = name != "livekit" or scenario.get("turns")
            events[name] = drivers[name].rest() if ends_itself else finish(drivers[name], relays[name], ends=2)
        yield Restart(relays, events, port)


@pytest.fixture(scope="module")
def restart(server: ServerProcess, node: Driver, livekit: Driver, pipecat: Driver, spoken: Spoken) -> Iterator[Restart]:
    order, fan, name = spoken("order"), spoken("porch_fan"), spoken("name")
    asked = [("start",), ("push", order), ("signal",), ("connected",), ("push", name), ("stop",), ("wait", "final", 2)]
    scenarios: dict[str, dict[str, Any]] = {
        "node": {"scenario": "talk", "parts": [order, fan], "options": OPTIONS},
        "livekit": {"scenario": "stream", "steps": [("push", order), ("signal",), ("push", fan)]},
        "pipecat": {"scenario": "stream", "steps": asked},
    }
    yield from restarted({"node": node, "livekit": livekit, "pipecat": pipecat}, scenarios, server.port)


@pytest.fixture(scope="module")
def restart_of_turns(server: ServerProcess, livekit: Driver, pipecat: Driver, spoken: Spoken) -> Iterator[Restart]:
    order, fan = spoken("order"), spoken("porch_fan", 2.0)
    asked = [("push", order), ("signal",), ("confirmed",), ("push", fan), ("wait", "final", 2)]
    scenarios: dict[str, dict[str, Any]] = {
        "livekit": {
            "steps": [("push", order), ("signal",), ("push", fan)], "options": {"model": "flux-general-en"},
        },
        "pipecat": {"steps": asked},
    }  # fmt: skip
    scenarios = {name: {"scenario": "stream", "turns": True, **scenario} for name, scenario in scenarios.items()}
    yield from restarted({"livekit": livekit, "pipecat": pipecat}, scenarios, server.port)


@pytest.mark.parametrize("name", NAMES)
def test_every_client_continues_at_the_other_replica(restart: Restart, name: str) -> None:
    """Two connections: the first with the text so far and 1012, the second to the other replica."""
    first, again = restart.relays[name].connections
    check_stream(first, text("order"), code=1012)
    check_stream(again, text("name" if name == "pipecat" else "porch_fan"), hung_up=name == "pipecat")
    assert again.port == restart.second_port != first.port


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_turn_ends_before_the_restart_and_the_next_is_elsewhere(restart_of_turns: Restart, name: str) -> None:
    """The first connection ends its turn and closes with 1012 without an `Error`."""
    first, again = restart_of_turns.relays[name].connections
    assert check_turns(first, text("order"), code=1012)[-1]["event"] == "EndOfTurn"
    check_turns(again, text("porch_fan"), hung_up=name == "pipecat")
    assert again.port == restart_of_turns.second_port != first.port


def test_the_javascript_sdk_reports_the_restart_and_does_not_reconnect_after_a_normal_close(restart: Restart) -> None:
    events = restart.events["node"]
    kinds = [event["event"] for event in events if event["event"] != "message"]
    assert kinds == ["open", "close", "open", "close", "waiting"]
    assert [event["code"] for event in events if event["event"] == "close"] == [1012, 1000]
    assert events[-1]["timers"] == 0


def test_livekit_reports_a_recoverable_error(restart: Restart, restart_of_turns: Restart) -> None:
    for events in (restart.events["livekit"], restart_of_turns.events["livekit"]):
        errors = [event for event in events if event["event"] == "error"]
        assert errors == [{"event": "error", "recoverable": True, "status": 1012}]
        assert said(events) == text("order", "porch_fan")
        assert [event["event"] for event in events if event["event"] in (FINAL, END)] == [FINAL, END] * 2


OUTAGE_S = 6.0  # longer than LiveKit tries by default, 4 s
PATIENT = "APIConnectOptions(max_retry=15, retry_interval=2.0)"


def test_the_page_for_clients_has_the_options_that_this_file_tries() -> None:
    page = (ROOT / "clients" / "README.md").read_text()
    assert page.count(PATIENT) == 2, "in the block for LiveKit, and where it says why"


@pytest.mark.parametrize("patient", [True, False])
def test_livekit_outlasts_a_single_server_only_if_it_is_told_to_wait(
    server: ServerProcess, livekit: Driver, spoken: Spoken, *, patient: bool
) -> None:
    """While the server is down its port refuses connections."""
    steps = [("push", spoken("order")), ("signal",), ("push", spoken("porch_fan"))]
    retries = {"max_retry": 15, "retry_interval": 2.0} if patient else {}
    with ServerProcess(drain_timeout_s=0) as first, Relay(first.port) as relay:
        livekit.begin("stream", host=relay.host, key=KEY, steps=steps, retries=retries)
        relay.wait(lambda: relay.connections and relay.connections[0].sent_word("order"))
        relay.target = closed_port()
        first.drain()
        if not patient:
            assert livekit.rest()[-1]["event"] == "raised"
            return
        time.sleep(OUTAGE_S)
        relay.target = server.port
        relay.wait(lambda: relay.connections[-1].status == 101 and relay.connections[-1].port == server.port)
        livekit.say(go=True)
        assert said(finish(livekit, relay, ends=2)) == text("order", "porch_fan")


def test_pipecat_reports_an_error_and_stays_usable(restart: Restart, restart_of_turns: Restart) -> None:
    errors = [event for event in restart.events["pipecat"] if event["event"] == "error"]
    assert "1012" in errors[0]["error"]
    assert all(error["usable"] for error in errors)
    assert all(event["usable"] for event in restart_of_turns.events["pipecat"] if event["event"] == "error")
    assert finals(restart.events["pipecat"]) == [(text("order"), False), (text("name"), True)]
    assert finals(restart_of_turns.events["pipecat"]) == [(text("order"), True), (text("porch_fan"), True)]
