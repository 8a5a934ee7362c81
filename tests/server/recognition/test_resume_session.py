"""A stream resumed in other sessions has the results of an unbroken one, for any script and any losses."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.two_pass import CONTEXT_S as CONTEXT_READ_S
from server.recognition.events import Final, UtteranceGap
from server.recognition.messages import StartAt
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.shouting import DigestingDecoder, ShoutingDecoder
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.resume_bench import Client, Configure, Context, Control, Finalize, ResumableBench

LIMITS = Limits(silence_endpoint_ms=900.0, max_utterance_s=3.0, max_backlog_s=1e9)
BEAM = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=8)
CONTEXT_S = 0.8  # short, so that context begins and ends within a script
DIGESTING = DigestingDecoder()  # the second pass of a resumed stream reads the same audio
DECODERS = {"greedy": None, "beam": BEAM, "shouting": ShoutingDecoder(), "digesting": DIGESTING}

words = st.text("abcde ", min_size=1, max_size=10)


@st.composite
def scripts(draw: st.DrawFn, channels: int, rate: int) -> list[np.ndarray | Control]:
    """Stretches of audio, with frames of the client between them."""
    controls = st.one_of(
        st.sampled_from([Finalize()] + [Finalize(channel) for channel in range(channels)]),
        st.lists(words.filter(str.strip), max_size=2).map(lambda phrases: Configure(tuple(phrases))),
        st.lists(st.text("abcde", min_size=3, max_size=5), max_size=2).map(lambda names: Context(" ".join(names))),
    )
    sounds = st.one_of(words.map(lambda text: spell(text, rate)), st.floats(0, 1.5).map(lambda s: silence(s, rate)))
    script: list[np.ndarray | Control] = []
    for _ in range(draw(st.integers(1, 6))):
        script += draw(st.lists(controls, max_size=2))
        columns = [draw(sounds) for _ in range(channels)]
        length = max(map(len, columns))
        script.append(np.stack([np.pad(c, (0, length - len(c))) for c in columns], axis=1))
    return script


def check(script: list[Any], seed: int, losses: int, **options: Any) -> Client:
    options |= {"limits": LIMITS, "utterance_end_ms": 700}
    whole, moved = Client(script, seed, **options), Client(script, seed, **options)
    with patch("server.recognition.keyterms.session_keyterms.CONTEXT_S", CONTEXT_S):
        whole.run(0)
        moved.run(losses)
    assert moved.finals == whole.finals
    assert moved.ends == whole.ends
    return moved


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), losses=st.integers(1, 5))
def test_one_resumed_channel_gives_the_results_of_an_unbroken_one(
    decoder: str, data: st.DataObject, seed: int, losses: int
) -> None:
    check(data.draw(scripts(1, 16_000)), seed, losses, decoder=DECODERS[decoder])


@pytest.mark.parametrize("decoder", ["greedy", "shouting", "digesting"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), losses=st.integers(1, 5))
def test_two_resumed_channels_answered_in_any_order(decoder: str, data: st.DataObject, seed: int, losses: int) -> None:
    """Engine results and second passes alike."""
    script = data.draw(scripts(2, 16_000))
    check(script, seed, losses, channels=2, multichannel=True, decoder=DECODERS[decoder])


@pytest.mark.parametrize("rate", [16_000, 8_000])
@pytest.mark.parametrize("voice", [True, "auto"])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), losses=st.integers(1, 5))
def test_resumed_streams_with_a_voice_activity_model(
    voice: bool | str, rate: int, data: st.DataObject, seed: int, losses: int
) -> None:
    script = data.draw(scripts(1, rate))
    check(script, seed, losses, voice=voice, sample_rate=rate)


@pytest.mark.parametrize(
    ("rate", "decoder"),
    # A new resampler for 44,100 Hz may give a sample that differs by one unit.
    [(8_000, None), (44_100, None), (48_000, None), (8_000, DIGESTING), (48_000, DIGESTING)],
)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), losses=st.integers(1, 4), channels=st.integers(1, 2))
def test_resumed_streams_at_other_sample_rates(
    rate: int, decoder: DigestingDecoder | None, data: st.DataObject, seed: int, **drawn: int
) -> None:
    channels = drawn["channels"]
    script, options = data.draw(scripts(channels, rate)), {"channels": channels, "multichannel": channels > 1}
    check(script, seed, drawn["losses"], sample_rate=rate, decoder=decoder, **options)


def test_a_client_sends_the_audio_of_the_open_segment_again_and_no_more() -> None:
    whole, moved = (ResumableBench(limits=LIMITS, decoder=DIGESTING) for _ in range(2))
    whole.send(np.concatenate([spell("before"), silence(0.9), silence(2.5), spell("now open")]))
    whole.mark()
    whole.answer()
    open_s = len(spell("now open")) / 16_000
    again_s = moved.restore(whole.saved[-1])
    assert 0 < whole.session.audio.received_s - again_s <= CONTEXT_READ_S + open_s + LIMITS.silence_endpoint_ms / 1_000
    plain = ResumableBench(limits=LIMITS)
    plain.send(np.concatenate([spell("before"), silence(0.9), silence(2.5), spell("now open")]))
    plain.mark()
    plain.answer()
    assert plain.session.audio.received_s - ResumableBench(limits=LIMITS).restore(plain.saved[-1]) < 0.1


def test_a_stream_that_ends_before_its_audio_was_sent_again_has_the_words_of_the_first_pass() -> None:
    whole, moved = (ResumableBench(limits=LIMITS, decoder=DIGESTING) for _ in range(2))
    whole.send(spell("one two "))
    whole.mark()
    whole.answer()
    moved.restore(whole.saved[-1])
    moved.close()
    moved.answer()
    assert moved.text() == "one two"


def test_a_gap_after_a_resumed_final_has_the_end_of_its_last_word_as_it_was_sent() -> None:
    decoder = ShoutingDecoder()
    decoder.later_s = CONFIG.frame_s
    options = {"limits": LIMITS, "decoder": decoder, "utterance_end_ms": 1_500}
    whole, moved = (ResumableBench(**options) for _ in range(2))
    whole.send(np.concatenate([spell("gap"), silence(0.9)]))
    whole.mark()
    whole.answer()
    (final,) = [one for one in whole.finals() if one.words]
    assert final.words[0].text == "GAP"
    moved.restore(whole.saved[-1])
    moved.send(silence(2.0))
    moved.answer()
    (gap,) = [event for event in moved.events if isinstance(event, UtteranceGap)]
    assert gap.last_word_end_s == final.words[0].end_s


def test_a_step_that_a_resampler_held_back_until_the_end_comes_before_every_channels_flush() -> None:
    """The fresh resampler of a resumed stream holds back more or less than that of the unbroken one."""
    rate, length = 44_100, 60_638 + 35_831 + 35_280
    script = np.zeros((length, 2), np.int16)
    for begin, channel, text in ((0, 0, "a"), (60_638, 1, "a"), (96_469, 0, "a" * 10), (96_469, 1, "aaa")):
        said = spell(text, rate)
        script[begin : begin + len(said), channel] = said
    moves = [check([script], seed, 1, sample_rate=rate, channels=2, multichannel=True).moves for seed in range(40)]
    assert sum(moves) > 20


@pytest.mark.parametrize("seed", [31, 46, 53])  # with steps sent as resamplers give them, the order is another
def test_when_one_channel_is_flushed_the_order_of_results_is_still_that_of_the_audio(seed: int) -> None:
    """From then on the resamplers of both channels hold back unlike amounts, and a resumed one yet another."""
    rate, dice = 8_000, random.Random(seed)
    flush = Finalize(dice.randrange(2))
    before = said(dice, rate, 1)[: int(dice.uniform(0.2, 1.0) * rate)]
    check([before, flush, said(dice, rate, 3)], seed, 2, sample_rate=rate, channels=2, multichannel=True)


def said(dice: random.Random, rate: int, count: int) -> np.ndarray:
    """Two channels of short words and pauses, (S, 2) int16."""
    columns = []
    for _ in range(2):
        parts = []
        for _ in range(count):
            parts.append(spell("".join(dice.choices("abcd", k=dice.randint(1, 3))), rate))
            parts.append(silence(dice.uniform(0.9, 1.3), rate))
        columns.append(np.concatenate(parts))
    length = max(map(len, columns))
    return np.stack([np.pad(column, (0, length - len(column))) for column in columns], axis=1)


def test_scripts_do_resume_streams_and_repeat_results() -> None:
    """The properties above would hold for streams that never move, too."""
    text = "ab cd e abc de a bcd eab c dea"
    script = [piece[:, None] for _ in range(3) for piece in (spell(text), silence(0.7))]
    clients = [check(script, seed, 4) for seed in range(20)]
    assert sum(client.moves for client in clients) > 60
    assert sum(client.repeated for client in clients) > 5


def test_context_of_a_resumed_stream_ends_where_it_ends_in_an_unbroken_one() -> None:
    whole, moved = (ResumableBench(limits=LIMITS, decoder=BEAM) for _ in range(2))
    whole.session.keyterms.replace_phrases(["own"])
    with patch("server.recognition.keyterms.session_keyterms.CONTEXT_S", 4.0):
        assert whole.session.keyterms.add_context("bcade") == ("bcade",)
    whole.send(silence(1.5))
    whole.mark()
    whole.answer()
    moved.send(silence(1.8 - moved.restore(whole.saved[-1])))
    whole.send(silence(0.3))
    left = whole.session.channels[0].settings.bias_steps
    for bench in (whole, moved):
        bench.answer()
        (channel,) = bench.session.channels
        assert bench.session.keyterms.current.context == ("bcade",)
        assert channel.settings.bias_steps == left > 0
        assert channel.segment.state.bias.phrases == (("bcade", 1.0), ("own", 1.0))
        bench.send(silence(2.2))
        bench.answer()
        assert channel.segment.state.bias.phrases == (("own", 1.0),)
        assert bench.session.keyterms.current.context == ()


def test_start_without_a_ticket_continues_time_and_count_of_finals() -> None:
    bench = ResumableBench(limits=LIMITS)
    bench.session.take(StartAt(11.4, 9))
    bench.send(spell("ab"))
    bench.answer()
    bench.close()
    bench.answer()
    final = bench.finals()[0]
    assert isinstance(final, Final)
    assert (final.start_s, final.words[0].text) == (11.4, "ab")
    assert 11.4 <= final.words[0].start_s < final.words[0].end_s <= final.start_s + final.duration_s
    assert final.start_s + final.duration_s == pytest.approx(11.4 + len(spell("ab")) / 16_000)
    assert bench.resumption.order.finals == 10
