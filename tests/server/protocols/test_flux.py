"""Deepgram's Flux protocol on real sockets: the order of messages, control messages, refusals and closes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from model.turn_ends.score import score_of
from server.settings import Settings
from tests.support.clients.flux_wire_rules import check_flux
from tests.support.servers.array_slots import Array, ArraySlots, Row, State
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import CONFIG, silence, spell, voiced
from tests.support.servers.two_models import two_models

Start = Callable[..., LiveServer]
FORM = "model=flux-general-en&encoding=linear16&sample_rate=16000"
MULTILINGUAL = "model=flux-general-multi&encoding=linear16&sample_rate=16000"
CLOSE = '{"type":"CloseStream"}'


def dial(server: LiveServer, query: str = "") -> ClientConnection:
    url = f"ws://{server.host}/v2/listen?{FORM}{query}"
    return connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S)


def messages(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        try:
            yield json.loads(socket.recv(timeout=WAIT_S))
        except ConnectionClosed:
            return


def converse(server: LiveServer, *frames: bytes | str, query: str = "") -> list[dict[str, Any]]:
    with dial(server, query) as socket:
        for frame in frames:
            socket.send(frame)
        return list(messages(socket))


def ends(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(turn["transcript"], turn["trigger"]) for turn in turns if turn["event"] == "EndOfTurn"]


def test_a_fork_gives_the_words_of_the_early_end_and_of_the_end_before_the_stream_has_them(
    live_server: Start,
) -> None:
    """The model writes a letter 0.12 s late, and the early end comes after 0.2 s of silence of the audio."""
    server = live_server()
    audio = [voiced("hello there").tobytes(), silence(1.0).tobytes(), voiced("you").tobytes(), silence(2.0).tobytes()]
    turns = check_flux(converse(server, *audio, CLOSE, query=scores(eager=0.2, end=0.7)))
    assert ends(turns) == [("Hello, there.", "model"), ("You.", "model")]
    spoken_s = len(audio[0]) / 2 / 16_000
    times = {turn["event"]: turn["audio_window_end"] - spoken_s for turn in reversed(turns) if not turn["turn_index"]}
    assert times["EagerEndOfTurn"] == pytest.approx(0.2, abs=0.081)
    assert times["EndOfTurn"] == pytest.approx(0.7, abs=0.081)
    assert forks(server) == (2, 0)
    assert server.metric("tutti_turn_words_differing_total") == 0


class LateVad:
    """A voice detector that answers once its gate is open."""

    step_samples = 512
    input_spec = (step_samples,), np.int16
    state_spec: Mapping[str, Row] = {}

    def __init__(self) -> None:
        self.gate = threading.Event()

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> ArraySlots:
        return ArraySlots(self, capacity=capacity, largest=largest)

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        self.gate.wait(WAIT_S)
        return 0.1 + 0.8 * (inputs != 0).any(axis=1, keepdims=True).astype(np.float32), state


def test_a_stream_is_forked_after_the_rows_that_wait_for_the_voice_activity_model(live_server: Start) -> None:
    audio = np.concatenate([voiced("hello there"), silence(1.5), voiced("you"), silence(2.0)])
    vad = LateVad()
    server = live_server(vad_model=vad, vad="silero")
    rows = server.replica.models.default.metrics.batch_rows
    enough = rows.value + len(audio) // CONFIG.step_samples
    with dial(server, scores(eager=0.2, end=0.7)) as socket:
        socket.send(audio.tobytes())
        server.wait_until(lambda: rows.value >= enough)
        vad.gate.set()
        socket.send(CLOSE)
        turns = check_flux(list(messages(socket)))
    assert [turn["transcript"] for turn in turns if turn["event"] == "EagerEndOfTurn"] == ["Hello, there.", "You."]
    assert forks(server) == (2, 0)


def test_without_a_spare_slot_turns_end_by_the_words_of_the_stream(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "forks_here", property(lambda _: 0))
    server = live_server()
    audio = [voiced("hello there").tobytes(), silence(2.0).tobytes()]
    turns = check_flux(converse(server, *audio, CLOSE, query=scores(eager=0.2, end=0.7)))
    assert ends(turns) == [("Hello, there.", "model")]
    assert "EagerEndOfTurn" in [turn["event"] for turn in turns]
    assert forks(server) == (0, 1)


def test_a_configure_changes_the_silence_after_which_a_stream_is_forked(live_server: Start) -> None:
    server = live_server()
    configure = json.dumps({"type": "Configure", "thresholds": {"eager_eot_threshold": score_of(0.45)}})
    audio = [voiced("one two").tobytes(), silence(1.5).tobytes()]
    received = converse(server, configure, *audio, CLOSE, query=scores(eager=0.2, end=0.7))
    (eager,) = [turn for turn in check_flux(received) if turn["event"] == "EagerEndOfTurn"]
    assert eager["audio_window_end"] - len(audio[0]) / 2 / 16_000 == pytest.approx(0.45, abs=0.081)


def scores(*, eager: float, end: float) -> str:
    """Return the thresholds for an early end and an end after these silences."""
    return f"&eager_eot_threshold={score_of(eager):.6f}&eot_threshold={score_of(end):.6f}"


def forks(server: LiveServer) -> tuple[float, float]:
    """Forks that were done, and those refused."""
    done, refused = [server.metric(f'tutti_forks_total{{model="spelling",outcome="{o}"}}') for o in ("done", "refused")]
    return done, refused


def test_a_threshold_of_one_leaves_the_timeout(live_server: Start) -> None:
    audio = [spell("hello").tobytes(), silence(3).tobytes()]
    turns = check_flux(converse(live_server(), *audio, CLOSE, query="&eot_threshold=1.0&eot_timeout_ms=1500"))
    assert ends(turns) == [("Hello?", "timeout")]


def test_force_end_turn_ends_an_open_turn_and_gets_a_warning_without_one(live_server: Start) -> None:
    force = '{"type":"ForceEndTurn"}'
    audio = [force, spell("one").tobytes(), force, force, silence(1).tobytes(), force, spell("two").tobytes(), CLOSE]
    received = converse(live_server(), *audio)
    turns = check_flux(received)
    assert [trigger for _, trigger in ends(turns)] == ["manual", "manual"]
    assert ends(turns)[0][0].startswith("One")
    warnings = [message["code"] for message in received if message["type"] == "Warning"]
    assert warnings == ["FORCE_END_TURN_NO_ACTIVE_TURN"] * 3


def test_configure_is_all_or_nothing_and_answers_with_all_values(live_server: Start) -> None:
    good = {"type": "Configure", "thresholds": {"eot_threshold": 0.8, "eager_eot_threshold": 0.5}}
    bad = {"type": "Configure", "thresholds": {"eot_threshold": 0.6, "eot_timeout_ms": 1}}
    off = {"type": "Configure", "thresholds": {"eager_eot_threshold": None, "eot_timeout_ms": None}, "keyterms": []}
    other = {"type": "Configure", "profanity_filter": True}
    received = converse(live_server(), *(json.dumps(message) for message in (good, bad, off, other)), CLOSE)
    check_flux(received)
    kinds = [message["type"] for message in received[1:]]
    assert kinds == ["ConfigureSuccess", "ConfigureFailure", "ConfigureSuccess", "ConfigureFailure"]
    first, failure, second, unsupported = received[1:]
    assert first["thresholds"] == {"eot_threshold": 0.8, "eager_eot_threshold": 0.5, "eot_timeout_ms": 5000}
    assert failure["description"].startswith("eot_timeout_ms: ")
    assert failure["code"] == failure["error_code"]
    assert second["thresholds"] == {"eot_threshold": 0.8, "eot_timeout_ms": 5000}
    assert unsupported["description"].startswith("profanity_filter: ")


def test_a_configure_changes_the_turns_of_the_audio_after_it(live_server: Start) -> None:
    """Whether the audio before it is recognized already or still waits makes no difference."""
    server = live_server()
    first, second = (b"".join([spell(text).tobytes(), silence(1.5).tobytes()]) for text in ("one", "two"))
    configure = json.dumps({"type": "Configure", "thresholds": {"eot_threshold": 1.0, "eot_timeout_ms": 1_000}})
    at_once = check_flux(converse(server, first + second[:3_200], configure, second[3_200:], CLOSE))
    with dial(server) as socket:
        received = []
        socket.send(first + second[:3_200])
        while not received or received[-1].get("event") != "EndOfTurn":
            received.append(json.loads(socket.recv(timeout=WAIT_S)))
        socket.send(configure)
        socket.send(second[3_200:])
        socket.send(CLOSE)
        later = check_flux([*received, *messages(socket)])
    assert ends(at_once) == ends(later) == [("One.", "model"), ("Two.", "timeout")]


def test_the_hint_chooses_the_language_that_events_have(live_server: Start) -> None:
    server, found = live_server(model=two_models()), {}
    for hint in ("en", "es"):
        url = f"ws://{server.host}/v2/listen?{MULTILINGUAL}&language_hint={hint}"
        with connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:
            socket.send(spell("one").tobytes() + silence(1.2).tobytes())
            socket.send(CLOSE)
            turns = check_flux(list(messages(socket)))
        assert {tuple(turn["languages"]) for turn in turns} == {(hint,)}
        assert {tuple(turn["languages_hinted"]) for turn in turns} == {(hint,)}
        found[hint] = turns[-1]["transcript"].lower().strip(".")
    assert found == {"en": "one", "es": "ome"}  # the model of Spanish recognizes "n" as "m"
    english = check_flux(converse(server, spell("one").tobytes(), CLOSE))
    assert not [turn for turn in english if "languages" in turn]  # as Deepgram's English model
