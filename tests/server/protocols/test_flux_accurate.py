"""Turns with accurate finals: both ends have the words of one second pass, at the places of turns without it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from server.models.loading import LoadedModel
from server.settings import Settings
from tests.server.protocols.test_flux import CLOSE, converse, ends, forks, scores
from tests.support.clients.flux_wire_rules import check_flux
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import SpellingModel, silence, spelling_decoder, voiced

Start = Callable[..., LiveServer]
EARLY = scores(eager=0.2, end=0.7)


@pytest.fixture
def decoder() -> ShoutingDecoder:
    return ShoutingDecoder()


@pytest.fixture
def server(live_server: Start, decoder: ShoutingDecoder) -> LiveServer:
    return live_server(model=[accurate_model(decoder)])


def accurate_model(decoder: ShoutingDecoder) -> LoadedModel:
    return LoadedModel.of(SpellingModel(), spelling_decoder(), "spelling", ("en",), passes={("accurate", ""): decoder})


def said(*parts: str | float) -> list[bytes]:
    return [(silence(part) if isinstance(part, float) else voiced(part)).tobytes() for part in parts]


def places(turns: list[dict[str, Any]]) -> list[tuple[str, int, float, str]]:
    """Return what of each event depends on no text."""
    return [
        (turn["event"], turn["turn_index"], turn["audio_window_end"], turn.get("trigger", "")) for turn in turns
    ]  # fmt: skip


def test_both_ends_have_the_words_of_one_second_pass_at_the_same_places(
    server: LiveServer, decoder: ShoutingDecoder
) -> None:
    audio = said("hello there", 1.0, "you", 2.0)
    fast, accurate = (
        check_flux(converse(server, *audio, CLOSE, **EARLY, finals=each)) for each in ("fast", "accurate")
    )
    assert ends(fast) == [("Hello, there.", "model"), ("You.", "model")]
    assert ends(accurate) == [("Hello THERE.", "model"), ("YOU.", "model")]
    assert places(accurate) == places(fast)
    assert all(turn["transcript"].islower() for turn in accurate[1:4])  # updates, of the stream
    assert decoder.passes == 2  # one a turn: neither the end nor the segment of the stream needs another
    assert server.metric("tutti_turn_words_differing_total") == 0


def test_by_default_turns_have_the_second_pass_of_live_streams(live_server: Start, decoder: ShoutingDecoder) -> None:
    model = LoadedModel.of(SpellingModel(), spelling_decoder(), "spelling", ("en",), passes={("context", ""): decoder})
    server = live_server(model=[model])
    for finals, text in ({}, "Hello THERE."), ({"finals": "fast"}, "Hello, there."):
        turns = check_flux(converse(server, *said("hello there", 2.0), CLOSE, **EARLY, **finals))
        assert ends(turns) == [(text, "model")]


def test_a_turn_that_resumes_has_a_second_pass_for_each_text(server: LiveServer, decoder: ShoutingDecoder) -> None:
    audio = said("hello", 0.4, " there", 2.0)
    turns = check_flux(converse(server, *audio, CLOSE, **EARLY, finals="accurate"))
    early = [turn["transcript"] for turn in turns if turn["event"] == "EagerEndOfTurn"]
    assert (early, ends(turns)) == (["HELLO.", "Hello THERE."], [("Hello THERE.", "model")])
    assert [turn["event"] for turn in turns].count("TurnResumed") == 1
    assert decoder.passes == 2


@pytest.mark.parametrize("slots", [0, 16])
def test_without_a_fork_an_end_whose_words_differ_takes_the_early_end_back(
    live_server: Start, decoder: ShoutingDecoder, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """None is spare, or the words are masked."""
    monkeypatch.setattr(Settings, "forks_here", property(lambda _: slots))
    server = live_server(model=[accurate_model(decoder)])
    redacted = {"redact": "numbers"} if slots else {}
    audio = said("pay four one five two six now", 2.0)
    turns = check_flux(converse(server, *audio, CLOSE, **EARLY, **redacted, finals="accurate"))
    ((text, _),) = ends(turns)
    assert text == ("Pay [NUMBER_1] NOW." if slots else "Pay four one five two six NOW.")
    events = [turn["event"] for turn in turns]
    assert events[-2:] == ["TurnResumed", "EndOfTurn"]
    assert "EagerEndOfTurn" in events
    assert decoder.passes == 1


def test_a_fork_needs_no_slot_during_its_second_pass(
    live_server: Start, decoder: ShoutingDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "forks_here", property(lambda _: 1))
    monkeypatch.setattr("server.recognition.decoding.segment_threads.usable_cores", lambda: 2)
    server = live_server(model=[accurate_model(decoder)], finals="accurate")
    second = server.replica.models.default.recognizer._decoder._second_pass  # with one thread, which the gate stops
    decoder.gate.clear()
    with ExitStack() as stack:
        streams = [stack.enter_context(WireStream(server, "flux", **EARLY)) for _ in range(3)]
        for number, stream in enumerate(streams, start=1):
            stream.send(b"".join(said("hello there", 2.0)))
            server.wait_until(lambda number=number: (decoder.begun, second.waiting) == (1, number - 1))
        decoder.gate.set()
        for stream in streams:
            stream.finish()
            assert ends(check_flux(stream.frames)) == [("Hello THERE.", "model")]
    assert forks(server) == (3, 0)


def test_a_second_pass_that_fails_leaves_the_words_of_the_first(server: LiveServer, decoder: ShoutingDecoder) -> None:
    decoder.fails = True
    turns = check_flux(converse(server, *said("hello there", 2.0), CLOSE, **EARLY, finals="accurate"))
    assert ends(turns) == [("Hello, there.", "model")]


def test_streams_together_have_the_turns_of_each_alone(server: LiveServer) -> None:
    dice = np.random.default_rng(3)
    texts = [" ".join("".join(dice.choice(list("abcde"), 4)) for _ in range(3)) for _ in range(6)]
    scripts = [said(text[:4], float(dice.uniform(0.1, 0.9)), text[4:], 1.5) for text in texts]
    query = EARLY | {"finals": "accurate"}
    alone = [check_flux(converse(server, *script, CLOSE, **query)) for script in scripts]
    with ExitStack() as stack:
        streams = [stack.enter_context(WireStream(server, "flux", **query)) for _ in scripts]
        for stream, script in zip(streams, scripts, strict=True):
            for part in (*script, CLOSE):
                stream.send(part)
        for stream, expected in zip(streams, alone, strict=True):
            stream.rest()
            turns = check_flux(stream.frames)
            assert [(turn["event"], turn["transcript"]) for turn in turns] == [
                (turn["event"], turn["transcript"]) for turn in expected
            ]
            assert places(turns) == places(expected)
