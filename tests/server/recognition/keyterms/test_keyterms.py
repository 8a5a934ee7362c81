"""Key terms from the query and from `Configure`: bounded, per connection, from the right sample on, and given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from model.config import ENGLISH
from model.ctc.bias import NO_BIAS, Bias, BiasError
from server.errors import KeytermsTooOften
from server.protocols.deepgram.query import ListenRequest, parse_query
from server.recognition.decoding.batch_decoder import BatchTiming, Route, Row
from server.recognition.keyterms.keyterms import (
    CHARACTERS_PER_S,
    MAX_CHARACTERS,
    MAX_TERMS,
    NO_KEYTERMS,
    ChangeAllowance,
    Keyterms,
)
from server.recognition.steps import Marker, StepTag
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import CONFIG, poison, silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.servers.uploaded import encoded, said
from tests.support.streams.engine_bench import SilentEngine, session_on
from tests.support.streams.session_bench import SessionBench

Start = Callable[..., LiveServer]
RAW = "encoding=linear16&sample_rate=16000"


def query(text: str, *, supports_keyterms: bool = True) -> ListenRequest:
    pairs = parse_qsl(text, keep_blank_values=True)
    return parse_query(pairs, max_channels=2, supports_keyterms=supports_keyterms)


@pytest.mark.parametrize(
    ("text", "phrases", "keywords"),
    [
        ("", (), ()),
        ("keyterm=foo+bar&keyterm=baz", ("foo bar", "baz"), ()),
        ("keyterm=foo%20bar&model=nova-3&keyterm=+baz+", ("foo bar", "baz"), ()),
        ("keywords=snow:2&keywords=rain", (), (("snow", 2.0), ("rain", None))),
        ("keywords=snow:-1.5&keywords=ice+cream:3", (), (("snow", -1.5), ("ice cream", 3.0))),
        ("keyterm=sun&keywords=snow:2", ("sun",), (("snow", 2.0),)),
    ],
)
def test_every_key_term_of_a_query_counts(text: str, phrases: tuple[str, ...], keywords: tuple[object, ...]) -> None:
    request = query(f"{RAW}&{text}")
    assert (request.options.keyterms.phrases, request.options.keyterms.keywords) == (phrases, keywords)
    assert bool(request.options.keyterms.bias) == bool(phrases or keywords)
    assert request.ignored == ()


def test_a_decoder_without_a_bias_ignores_key_terms_and_says_so() -> None:
    request = query(f"{RAW}&keyterm=foo&keywords=snow:much", supports_keyterms=False)
    assert request.options.keyterms == NO_KEYTERMS
    assert request.ignored == ("keyterm", "keywords")


def test_phrases_are_replaced_and_keywords_stay() -> None:
    terms = Keyterms.of(["foo"], [("snow", 2.0)])
    assert terms.replaced(["bar"]) == Keyterms.of(["bar"], [("snow", 2.0)])
    assert terms.replaced([]).bias.phrases == (("snow", 2.0),)
    assert Keyterms.of(["foo"]).replaced([]).bias == NO_BIAS
    with pytest.raises(BiasError):
        terms.replaced([f"term{i}" for i in range(MAX_TERMS)])


# In a session: the decoder writes the bias after each word, as it was when the word was closed.


def test_a_change_holds_for_the_audio_that_follows_and_for_every_channel() -> None:
    bench = SessionBench(decoder=WaveringDecoder(), channels=2, multichannel=True, endpointing_ms=None)
    gap = silence(CONFIG.delay_frames * CONFIG.frame_s)  # the words come out of the lookahead
    both = np.stack([np.concatenate([spell(word), gap]) for word in ("one ", "six ")], axis=1).tobytes()
    for phrases in (("a",), ("b",), ()):
        bench.configure(*phrases)
        bench.send(both)
    bench.send(silence(2.0).repeat(2).tobytes())
    bench.answer()
    bench.close()
    bench.answer()
    assert bench.text(0).split() == ["one+a", "one+b", "one"]
    assert bench.text(1).split() == ["six+a", "six+b", "six"]


changes = st.lists(st.tuples(st.text("ab ", min_size=1, max_size=6), st.sampled_from(["", "x", "y"])), max_size=5)


@settings(max_examples=60)
@given(changes, st.data())
def test_effect_of_a_change_does_not_depend_on_when_steps_are_answered(
    script: list[tuple[str, str]], data: st.DataObject
) -> None:
    whole, late = (SessionBench(decoder=WaveringDecoder(), endpointing_ms=None) for _ in range(2))
    for text, phrase in script:
        for bench in (whole, late):
            bench.configure(*([phrase] if phrase else []))
            bench.send(spell(text)[:-100])
        whole.answer()
        late.answer(data.draw(st.integers(0, 4)))
    for bench in (whole, late):
        bench.send(silence(1.0))
        bench.close()
        bench.answer()
    assert late.events == whole.events


def test_pending_changes_are_bounded_by_pending_steps() -> None:
    bench = SessionBench(decoder=WaveringDecoder())
    bench.send(silence(0.8))
    for i in range(1_000):
        bench.configure(f"term {i}")
    (channel,) = bench.session.channels
    assert len(channel.settings.changes.waiting) == 1
    bench.answer()
    assert channel.segment.state.bias.phrases == (("term nine hundred and ninety nine", 1.0),)


def test_changes_cost_their_characters_and_audio_restores_the_allowance() -> None:
    """The event loop builds them: a client that changes all the time must not hold up its neighbors."""
    full = [f"word number {i}"[:12] for i in range(MAX_TERMS)]
    bench = SessionBench(decoder=WaveringDecoder())
    bench.session.keyterms.replace_phrases(full)
    held = bench.session.keyterms.current
    with pytest.raises(KeytermsTooOften, match=r"after [0-9.]+ s more of audio"):
        bench.session.keyterms.replace_phrases(full[:-1])
    assert bench.session.keyterms.current is held
    bench.session.keyterms.replace_phrases([])
    bench.send(silence(1.0))
    bench.session.keyterms.replace_phrases(["y" * int(CHARACTERS_PER_S)])
    with pytest.raises(KeytermsTooOften):
        bench.session.keyterms.replace_phrases(["z" * int(CHARACTERS_PER_S)])


def test_unspent_allowance_is_capped_at_one_full_set() -> None:
    allowance = ChangeAllowance()
    allowance.spend(MAX_CHARACTERS, 1_000.0)
    with pytest.raises(KeytermsTooOften, match=r"after 0\.2 s"):
        allowance.spend(100, 1_000.0)
    allowance.spend(100, 1_000.2)


def test_too_many_terms_are_refused_and_cost_no_allowance() -> None:
    bench = SessionBench(decoder=WaveringDecoder())
    for phrases in (["x"] * (MAX_TERMS + 1), ["x" * (MAX_CHARACTERS + 1)]) * 3:
        with pytest.raises(BiasError):
            bench.session.keyterms.replace_phrases(phrases)
    bench.session.keyterms.replace_phrases(["x" * MAX_CHARACTERS])


def test_a_flush_keeps_the_bias() -> None:
    bench = SessionBench(decoder=WaveringDecoder(), endpointing_ms=None)
    bench.configure("foo")
    for _ in range(2):
        bench.send(np.concatenate([spell("one "), silence(0.9)]))
        bench.finalize()
        bench.answer()
    assert bench.text().split() == ["one+foo", "one+foo"]


# Through a socket.


def test_configure_is_answered_with_the_current_terms(live_server: Start) -> None:
    with live_server(decoder=WaveringDecoder()).listen(keyterm="foo") as client:
        answers = []
        for keyterms in (None, ["bar", "baz"], ["x"] * (MAX_TERMS + 1), None, []):
            client.say("Configure", keyterms=keyterms, features={"numerals": False})
            answers.append(client.receive())
        client.finish()
    kinds = [a["type"] for a in answers]
    assert kinds == ["ConfigureSuccess", "ConfigureSuccess", "ConfigureFailure", "ConfigureSuccess", "ConfigureSuccess"]
    assert [a.get("keyterms") for a in answers] == [["foo"], ["bar", "baz"], None, ["bar", "baz"], []]
    assert answers[2]["code"] == "CONFIGURE_KEYTERM_LIMIT_EXCEEDED"
    assert len({a["request_id"] for a in answers}) == 1


def test_rapid_configure_frames_are_refused_until_audio_arrives(live_server: Start) -> None:
    terms = [f"number {i:03} " for i in range(MAX_TERMS)]
    with live_server(decoder=WaveringDecoder()).listen() as client:
        answers = []
        for i in range(3):
            client.say("Configure", keyterms=[f"{term}{i}" for term in terms])
            answers.append(client.receive())
        client.say("Configure", keyterms=answers[0]["keyterms"])
        again = client.receive()
        client.finish()
    assert [a["type"] for a in answers] == ["ConfigureSuccess", "ConfigureFailure", "ConfigureFailure"]
    assert {a["code"] for a in answers[1:]} == {"CONFIGURE_ALREADY_PENDING"}
    assert "of audio" in answers[1]["description"]
    assert again == answers[0], "what holds already costs nothing"


def test_key_terms_of_one_stream_never_reach_another(live_server: Start) -> None:
    server = live_server(decoder=WaveringDecoder())
    audio = np.concatenate([spell("one "), silence(1.0)])
    terms = [f"term {letter}" for letter in "abcdefgh"]
    clients = [server.listen(endpointing="false", keyterm=term) for term in terms]
    for client in clients:
        client.send(audio)
    for client, term in zip(clients, terms, strict=True):
        with client:
            assert transcript(client.finish()) == f"one+{term}"


def test_an_upload_has_key_terms_too_and_too_many_are_refused(live_server: Start) -> None:
    server = live_server(decoder=WaveringDecoder())
    body = encoded(np.concatenate([spell("one "), silence(1.0)]), "WAV")
    answer = server.http.post("/v1/listen?keyterm=foo&keyterm=bar+baz", content=body)
    assert said(answer.json()) == "one+foo+bar baz"
    assert "x-ignored-params" not in answer.headers
    many = "&".join(f"keyterm=t{i}" for i in range(MAX_TERMS + 1))
    refused = server.http.post(f"/v1/listen?{many}", content=body)
    assert (refused.status_code, refused.json()["err_code"]) == (400, "INVALID_QUERY_PARAMETER")


class LatinDecoder(WaveringDecoder):
    """A decoder whose symbols express no Chinese characters."""

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        return tuple(phrase for phrase, _ in bias.phrases if not phrase.replace(" ", "").isascii())


def test_key_terms_that_the_model_cannot_recognize_are_refused_by_name(live_server: Start) -> None:
    server = live_server(decoder=LatinDecoder())
    with pytest.raises(InvalidStatus) as refused:
        server.listen(keyterm="\u4f60\u597d")
    assert (refused.value.response.status_code, b"cannot be recognized" in refused.value.response.body) == (400, True)
    body = encoded(np.concatenate([spell("one "), silence(1.0)]), "WAV")
    answer = server.http.post("/v1/listen?keyterm=\u4f60\u597d", content=body)
    assert (answer.status_code, answer.json()["err_code"]) == (400, "INVALID_QUERY_PARAMETER")
    with server.listen(keyterm="foo") as client:
        client.say("Configure", keyterms=["bar", "\u4f60\u597d"])
        failure = client.receive()
        client.say("Configure", keyterms=None)
        kept = client.receive()
        client.finish()
    assert (failure["type"], "cannot be recognized" in failure["description"]) == ("ConfigureFailure", True)
    assert kept["keyterms"] == ["foo"]


def test_phrases_of_a_hint_that_the_model_cannot_recognize_are_left_out() -> None:
    session = SessionBench(decoder=LatinDecoder()).session
    assert session.keyterms.replace_phrases(["yes", "\u4f60\u597d", "turn on"], hints=True) == 1
    assert session.keyterms.current.phrases == ("yes", "turn on")


# The decoder may keep its states in slots: each comes back exactly once, whatever ends the session.


def test_every_end_of_a_session_releases_its_decoder_states(live_server: Start) -> None:
    decoder = WaveringDecoder()
    server = live_server(decoder=decoder, max_streams=2)
    with server.listen() as first, server.listen() as second:
        with pytest.raises(InvalidStatus):
            server.listen()  # refused in the handshake
        first.send(spell("one"))
        first.say("Finalize")
        first.until(lambda f: f.get("from_finalize", False))
        first.finish()
        second.send(spell("two"))
        second.vanish()
    server.wait_idle()
    with server.listen() as broken:
        broken.send(np.concatenate([spell("one"), poison()]))
        assert broken.rest()[1] == 1011
    server.wait_idle()
    server.http.post("/v1/listen", content=encoded(spell("three"), "WAV"))
    assert server.http.post("/v1/listen", content=b"no audio").status_code == 400
    server.wait_idle()
    assert decoder.started >= 5
    assert decoder.open == set()


class _FailingDecoder(WaveringDecoder):
    """Fails on a frame that says "x"."""

    def advance(self, states: Any, log_probs: Any) -> None:
        if (log_probs.argmax(axis=2) == ENGLISH.index("x")).any():
            raise ArithmeticError("x")
        super().advance(states, log_probs)


def test_failing_decoder_ends_the_streams_of_that_batch_and_no_others(live_server: Start) -> None:
    decoder = _FailingDecoder()
    server = live_server(decoder=decoder)
    with server.listen(endpointing="false") as sound, server.listen() as doomed:
        doomed.send(spell("ax and more"))
        frames, code, _ = doomed.rest()
        assert (frames[-1]["type"], code) == ("Error", 1011)
        sound.send(np.concatenate([spell("one "), silence(1.0)]))
        assert transcript(sound.finish()) == "one"
    server.wait_idle()
    assert decoder.open == set()
    assert server.metric('tutti_errors_total{stage="decode"}') == 1


def test_row_held_for_the_vad_model_is_not_decoded_after_its_session_closed() -> None:
    """A session may end while an earlier answer of the same batch is sent; its decoder state is gone then."""
    decoder = WaveringDecoder()
    bench = SessionBench(decoder=decoder, voice=True)
    bench.send(silence(0.128))
    (channel,) = bench.session.channels
    active = session_on(SilentEngine(), bench.session, _NoSink())
    route = Route(active, channel)
    row = Row(StepTag(1_280, 0.08, Marker.AUDIO, 0.0), 0.0, BatchTiming(0.0, 0.0, 1))
    held = row, np.zeros((2, 29), np.float32)
    route.held.extend([held, held])
    assert route.take_row() is held
    active.close()
    active.close()
    assert route.take_row() is None
    assert decoder.open == set()


class _NoSink:
    def on_events(self, events: object, timing: object) -> None: ...
