"""Deepgram's Flux protocol on real sockets: the order of messages, control messages, refusals and closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model.turn_ends.score import score_of
from server.recognition.steps import Auxiliary
from server.settings import Settings
from server.text.unfinished import WAIT_S as WAIT_IN_NUMBERS_S
from tests.support.clients.flux_wire_rules import check_flux
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.level_vad import LevelVad
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell, voiced
from tests.support.servers.two_models import two_models

Start = Callable[..., LiveServer]
CLOSE = {"type": "CloseStream"}


def converse(server: LiveServer, *frames: bytes | dict[str, Any], **query: Any) -> list[dict[str, Any]]:
    with WireStream(server, "flux", **query) as stream:
        for frame in frames:
            stream.send(frame)
        stream.rest()
    return stream.frames


def ends(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(turn["transcript"], turn["trigger"]) for turn in turns if turn["event"] == "EndOfTurn"]


def test_a_fork_gives_the_words_of_the_early_end_and_of_the_end_before_the_stream_has_them(live_server: Start) -> None:
    """The model writes a letter 0.12 s late, and the early end comes after 0.2 s of silence of the audio."""
    server = live_server()
    audio = [voiced("hello there").tobytes(), silence(1.0).tobytes(), voiced("you").tobytes(), silence(2.0).tobytes()]
    turns = check_flux(converse(server, *audio, CLOSE, **scores(eager=0.2, end=0.7)))
    assert ends(turns) == [("Hello, there.", "model"), ("You.", "model")]
    spoken_s = len(audio[0]) / 2 / 16_000
    times = {turn["event"]: turn["audio_window_end"] - spoken_s for turn in reversed(turns) if not turn["turn_index"]}
    assert times["EagerEndOfTurn"] == pytest.approx(0.2, abs=0.081)
    assert times["EndOfTurn"] == pytest.approx(0.7, abs=0.081)
    assert forks(server) == (2, 0)
    assert server.metric("tutti_turn_words_differing_total") == 0


def test_a_turn_that_only_acknowledges_says_so_until_it_has_another_word(live_server: Start) -> None:
    parts = [voiced("uh huh"), silence(2.0), voiced("okay "), silence(0.4), voiced("call me"), silence(2.0)]
    audio = [part.tobytes() for part in parts]
    turns = check_flux(converse(live_server(), *audio, CLOSE, **scores(eager=0.2, end=0.7)))
    early = [turn.get("backchannel") for turn in turns if turn["event"] == "EagerEndOfTurn"]
    ended = [turn.get("backchannel") for turn in turns if turn["event"] == "EndOfTurn"]
    assert (early, ended) == ([True, True, None], [True, None])


def test_the_pairs_of_extra_are_in_the_first_message(live_server: Start) -> None:
    server = live_server()
    connected, *_ = converse(server, CLOSE, extra=["call:7:a", "team:sales"])
    assert connected["extra"] == {"call": "7:a", "team": "sales"}
    assert "extra" not in converse(server, CLOSE)[0]


@pytest.mark.parametrize(("query", "quiet_s"), [({}, 0.7 + WAIT_IN_NUMBERS_S), ({"wait_in_numbers": "false"}, 0.7)])
def test_both_ends_wait_for_the_rest_of_a_number(live_server: Start, query: dict[str, str], quiet_s: float) -> None:
    audio = [part.tobytes() for part in (voiced("my number is two oh"), silence(3.0))]
    turns = check_flux(converse(live_server(), *audio, CLOSE, **scores(eager=0.2, end=0.7), **query))
    spoken_s = len(audio[0]) / 2 / 16_000
    times = {turn["event"]: turn["audio_window_end"] - spoken_s for turn in reversed(turns)}
    assert times["EndOfTurn"] == pytest.approx(quiet_s, abs=0.081)
    assert times["EagerEndOfTurn"] == pytest.approx(quiet_s - 0.5, abs=0.081)


def test_a_pause_inside_a_number_does_not_end_the_turn(live_server: Start) -> None:
    parts = [
        voiced("four one five "),
        silence(1.0),
        voiced("two six "),
        silence(1.0),
        voiced("seven one"),
        silence(3.0),
    ]
    turns = check_flux(converse(live_server(), *[part.tobytes() for part in parts], CLOSE))
    assert [text.lower() for text, _ in ends(turns)] == ["four one five two six seven one."]


@pytest.mark.parametrize("forks_here", [0, 16])
def test_with_backchannel_hold_a_turn_starts_with_its_first_word_that_does_not_acknowledge(
    live_server: Start, monkeypatch: pytest.MonkeyPatch, forks_here: int
) -> None:
    """With and without forks; a client that ends a held turn gets a warning that none is open."""
    monkeypatch.setattr(Settings, "forks_here", property(lambda _: forks_here))
    parts = [voiced("uh huh"), silence(2.0), voiced("okay "), silence(0.3), voiced("call me"), silence(2.0),
             voiced("yeah")]  # fmt: skip
    audio = [part.tobytes() for part in parts]
    received = converse(live_server(), *audio, {"type": "ForceEndTurn"}, CLOSE, backchannel="hold")
    turns = check_flux(received)
    assert ends(turns) == [("Okay call me.", "model")]
    assert turns[0]["event"] == "StartOfTurn"
    assert turns[0]["transcript"].startswith("okay c")
    assert [one["code"] for one in received if one["type"] == "Warning"] == ["FORCE_END_TURN_NO_ACTIVE_TURN"]


def test_a_configure_holds_acknowledgements_and_stops_holding_them(live_server: Start) -> None:
    audio = voiced("uh huh").tobytes() + silence(2.0).tobytes()
    hold, mark = ({"type": "Configure", "backchannel": value} for value in ("hold", "mark"))
    received = converse(live_server(), hold, audio, mark, audio, CLOSE)
    assert [turn["backchannel"] for turn in check_flux(received) if turn["event"] == "EndOfTurn"] == [True]
    answers = [one for one in received if one["type"] == "ConfigureSuccess"]
    assert [one.get("backchannel") for one in answers] == ["hold", None]


def test_a_stream_is_forked_after_the_rows_that_wait_for_the_voice_activity_model(live_server: Start) -> None:
    audio = np.concatenate([voiced("hello there"), silence(1.5), voiced("you"), silence(2.0)])
    vad = LevelVad()
    vad.gate.clear()
    server = live_server(auxiliary={Auxiliary.VAD: vad}, vad="silero")
    rows = server.replica.models.default.metrics.batch_rows
    enough = rows.value + len(audio) // CONFIG.step_samples
    with WireStream(server, "flux", **scores(eager=0.2, end=0.7)) as stream:
        stream.send(audio.tobytes())
        server.wait_until(lambda: rows.value >= enough)
        vad.gate.set()
        stream.finish()
    turns = check_flux(stream.frames)
    assert [turn["transcript"] for turn in turns if turn["event"] == "EagerEndOfTurn"] == ["Hello, there.", "You."]
    assert forks(server) == (2, 0)


def test_without_a_spare_slot_turns_end_by_the_words_of_the_stream(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "forks_here", property(lambda _: 0))
    server = live_server()
    audio = [voiced("hello there").tobytes(), silence(2.0).tobytes()]
    turns = check_flux(converse(server, *audio, CLOSE, **scores(eager=0.2, end=0.7)))
    assert ends(turns) == [("Hello, there.", "model")]
    assert "EagerEndOfTurn" in [turn["event"] for turn in turns]
    assert forks(server) == (0, 1)


def test_a_configure_changes_the_silence_after_which_a_stream_is_forked(live_server: Start) -> None:
    server = live_server()
    configure = {"type": "Configure", "thresholds": {"eager_eot_threshold": score_of(0.45)}}
    audio = [voiced("one day").tobytes(), silence(1.5).tobytes()]
    received = converse(server, configure, *audio, CLOSE, **scores(eager=0.2, end=0.7))
    (eager,) = [turn for turn in check_flux(received) if turn["event"] == "EagerEndOfTurn"]
    assert eager["audio_window_end"] - len(audio[0]) / 2 / 16_000 == pytest.approx(0.45, abs=0.081)


def scores(*, eager: float, end: float) -> dict[str, str]:
    """Return the thresholds for an early end and an end after these silences."""
    return {"eager_eot_threshold": f"{score_of(eager):.6f}", "eot_threshold": f"{score_of(end):.6f}"}


def forks(server: LiveServer) -> tuple[float, float]:
    """Forks that were done, and those refused."""
    done, refused = [server.metric(f'tutti_forks_total{{model="spelling",outcome="{o}"}}') for o in ("done", "refused")]
    return done, refused


def test_a_threshold_of_one_leaves_the_timeout(live_server: Start) -> None:
    audio = [spell("hello").tobytes(), silence(3).tobytes()]
    turns = check_flux(converse(live_server(), *audio, CLOSE, eot_threshold="1.0", eot_timeout_ms=1500))
    assert ends(turns) == [("Hello?", "timeout")]


def test_force_end_turn_ends_an_open_turn_and_gets_a_warning_without_one(live_server: Start) -> None:
    force = {"type": "ForceEndTurn"}
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
    received = converse(live_server(), good, bad, off, other, CLOSE)
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
    configure = {"type": "Configure", "thresholds": {"eot_threshold": 1.0, "eot_timeout_ms": 1_000}}
    at_once = check_flux(converse(server, first + second[:3_200], configure, second[3_200:], CLOSE))
    with WireStream(server, "flux") as stream:
        stream.send(first + second[:3_200])
        stream.until('"EndOfTurn"')
        for frame in (configure, second[3_200:], CLOSE):
            stream.send(frame)
        stream.rest()
    later = check_flux(stream.frames)
    assert ends(at_once) == ends(later) == [("One.", "model"), ("Two.", "timeout")]


def test_the_hint_chooses_the_language_that_events_have(live_server: Start) -> None:
    server, found = live_server(model=two_models()), {}
    for hint in ("en", "es"):
        audio = spell("one").tobytes() + silence(1.2).tobytes()
        turns = check_flux(converse(server, audio, CLOSE, model="flux-general-multi", language_hint=hint))
        assert {tuple(turn["languages"]) for turn in turns} == {(hint,)}
        assert {tuple(turn["languages_hinted"]) for turn in turns} == {(hint,)}
        found[hint] = turns[-1]["transcript"].lower().strip(".")
    assert found == {"en": "one", "es": "ome"}  # the model of Spanish recognizes "n" as "m"
    english = check_flux(converse(server, spell("one").tobytes(), CLOSE))
    assert not [turn for turn in english if "languages" in turn]  # as Deepgram's English model
