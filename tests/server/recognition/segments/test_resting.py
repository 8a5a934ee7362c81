"""Rest: events are those of a stream whose silence is computed, for any messages, answers, flushes and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.words import Word
from server.audio.pcm import PCM
from server.recognition.events import SpeechStarted
from server.recognition.segments.speaker_rules import SpeakerRules
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell, voiced
from tests.support.streams.resume_bench import Client, Configure, Context, Finalize
from tests.support.streams.session_bench import SessionBench

QUICK = (Phase.explicit, Phase.generate)
STEP_S = CONFIG.step_samples / CONFIG.sample_rate
RESTING = Limits(silence_endpoint_ms=900.0, max_utterance_s=3.0, max_backlog_s=1e9, rest_s=0.8)
NEVER = replace(RESTING, rest_s=None)
BEAM = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=8)
DECODERS = {"greedy": None, "beam": BEAM, "second pass": ShoutingDecoder()}

words = st.text("abcde ", min_size=1, max_size=8)
quiet = st.floats(0, 4.0).map(silence)
room = st.tuples(st.floats(0.1, 3.0), st.integers(1, 40), st.integers(0, 9)).map(
    lambda t: np.random.default_rng(t[2]).normal(0, t[1], round(t[0] * 16_000)).astype(np.int16)
)
stretches = st.lists(st.one_of(words.map(voiced), words.map(spell), quiet, quiet, room, st.just("flush")), max_size=8)
spoken = st.lists(st.one_of(words.map(voiced), quiet, quiet, st.just("flush")), max_size=8)
"""Levels that follow the rule: what is no silence is loud from its first step on."""


def run(script: Sequence[PCM | str], draw: st.DataObject | None = None, **options: Any) -> SessionBench:
    """Run a script in one message for each stretch, or with `draw` in messages of any size, answered at any time."""
    bench = SessionBench(**({"limits": RESTING, "utterance_end_ms": 700} | options))
    for item in script:
        if isinstance(item, str):
            bench.finalize()
        else:
            cuts = [] if draw is None else draw.draw(st.lists(st.integers(0, len(item)), max_size=5))
            for piece in np.split(item, sorted(cuts)):
                bench.send(piece)
                bench.answer(None if draw is None else draw.draw(st.integers(0, 20)))
    bench.close()
    bench.answer()
    return bench


def comparable(value: Any) -> Any:
    """Return events as tuples, with times in samples; without confidences, which fall with the steps since a reset."""
    if isinstance(value, Word):
        return value.text, round(value.start_s * 16_000), round(value.end_s * 16_000)
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if hasattr(value, "channel"):
        names = getattr(value, "__struct_fields__", None) or [field.name for field in fields(value)]
        return type(value).__name__, [comparable(getattr(value, name)) for name in names]
    return round(value * 16_000) if isinstance(value, float) else value


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=30, deadline=None, phases=QUICK)
@given(data=st.data(), script=stretches)
def test_events_and_steps_depend_on_audio_and_frames_alone(
    decoder: str, data: st.DataObject, script: list[PCM | str]
) -> None:
    whole = run(script, decoder=DECODERS[decoder])
    cut = run(script, data, decoder=DECODERS[decoder])
    assert cut.events == whole.events
    assert cut.computed == whole.computed


@pytest.mark.parametrize("options", [{}, {"voice": "auto"}, {"every_step": True}, {"endpointing_ms": None}], ids=str)
@settings(max_examples=30, deadline=None, phases=QUICK)
@given(data=st.data(), script=spoken)
def test_events_are_those_of_a_stream_that_computes_its_silence(
    options: dict[str, Any], data: st.DataObject, script: list[PCM | str]
) -> None:
    """Partials, finals, endpoints, gaps and starts of speech, with their times.

    A voice-activity model does not hear the step before the end of a rest, so a start may be later by that.
    """
    resting, never = run(script, data, **options), run(script, **options, limits=NEVER)
    starts = [[one for one in bench.events if isinstance(one, SpeechStarted)] for bench in (resting, never)]
    assert [one.time_s for one in starts[0]] == pytest.approx([one.time_s for one in starts[1]], abs=STEP_S)
    for bench in (resting, never):
        bench.events = [one for one in bench.events if not isinstance(one, SpeechStarted)]
    assert comparable(resting.events) == comparable(never.events)


def test_a_long_silence_takes_no_steps() -> None:
    script = [voiced("ab"), silence(60.0), voiced("cd"), silence(0.5)]
    resting, never = run(script), run(script, limits=NEVER)
    assert resting.text() == never.text() == "ab cd"
    assert never.computed - resting.computed > 58 / STEP_S


def test_open_text_is_not_left_by_a_rest() -> None:
    """Without endpoints the text stays open, and its segment ends where it would."""
    script, options = [voiced("ab"), silence(2.0)], {"endpointing_ms": None, "utterance_end_ms": None}
    assert run(script, **options).computed == run(script, **options, limits=NEVER).computed


def test_a_stream_at_rest_holds_no_memory_of_its_search_also_after_finals_of_silence() -> None:
    bench, blocks = SessionBench(limits=RESTING, decoder=BEAM), []
    for audio in (voiced("ab"), silence(2.0), silence(5.0), voiced("cd")):
        bench.send(audio)
        bench.answer()
        blocks.append(len(bench.session.channels[0].segment.state.block))
    assert blocks[0] == blocks[3] > 0
    assert blocks[1:3] == [0, 0]


def test_a_stream_that_never_rests_has_no_stage_for_it() -> None:
    assert SessionBench(limits=NEVER).session.rests is None


def test_a_stream_with_speakers_never_rests() -> None:
    """The vectors of its voices are those of all audio."""
    assert SessionBench(limits=RESTING).session.rests is not None
    assert SessionBench(limits=RESTING, speakers=SpeakerRules()).session.rests is None


def test_a_rest_waits_for_results_and_only_then_answers_by_itself() -> None:
    bench = SessionBench(limits=RESTING)
    bench.send(np.concatenate([voiced("ab"), silence(3.0)]))
    before = bench.computed
    assert bench.session.backlog_s == pytest.approx(3.0 + len(voiced("ab")) / 16_000, abs=STEP_S)
    bench.answer()
    assert bench.computed == before
    assert bench.session.backlog_s == 0.0
    assert bench.text() == "ab"


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=30, deadline=None, phases=QUICK)
@given(data=st.data(), script=stretches, seed=st.integers(0, 2**32), losses=st.integers(1, 5))
def test_a_resumed_stream_rests_where_an_unbroken_one_does(
    decoder: str, data: st.DataObject, script: list[PCM | str], seed: int, losses: int
) -> None:
    control = st.sampled_from([Finalize(), Configure(("ab",)), Context("abcd")])
    items = [data.draw(control) if isinstance(item, str) else item[:, None] for item in script]
    check(items, seed, losses, decoder=DECODERS[decoder])


@settings(max_examples=20, deadline=None, phases=QUICK)
@given(data=st.data(), seed=st.integers(0, 2**32), losses=st.integers(1, 4), rate=st.sampled_from([16_000, 8_000]))
def test_two_channels_of_a_resumed_stream_rest_each_by_itself(
    data: st.DataObject, seed: int, losses: int, rate: int
) -> None:
    columns = [np.concatenate([silence(0.1), *data.draw(stretches.map(audible))]) for _ in range(2)]
    length = max(map(len, columns))
    audio = np.stack([np.pad(column, (0, length - len(column))) for column in columns], axis=1)
    check([audio], seed, losses, channels=2, multichannel=True, sample_rate=rate)


def audible(script: list[PCM | str]) -> list[PCM]:
    return [item for item in script if not isinstance(item, str)]


def check(script: list[Any], seed: int, losses: int, **options: Any) -> Client:
    options |= {"limits": RESTING, "utterance_end_ms": 700}
    whole, moved = Client(script, seed, **options), Client(script, seed, **options)
    whole.run(0)
    moved.run(losses)
    assert moved.finals == whole.finals
    assert moved.ends == whole.ends
    return moved


def test_resumed_streams_do_rest_and_wake() -> None:
    """The properties above would hold for streams that never rest, too."""
    script = [piece[:, None] for _ in range(4) for piece in (voiced("ab cd"), silence(2.5))]
    moves = [check(script, seed, 5).moves for seed in range(20)]
    assert sum(moves) > 60


def test_words_at_the_end_of_the_audio_end_a_rest() -> None:
    """They are in no whole step, so only their level is known when the stream is flushed."""
    script = [silence(2.06), spell("b") + np.where(np.arange(1_280) % 2, 300, -300).astype(np.int16)[: len(spell("b"))]]
    assert run([silence(2.0)]).computed < run([silence(2.0)], limits=NEVER).computed
    assert run(script).text() == run(script, limits=NEVER).text() == "b"


@pytest.mark.parametrize("fork_after_s", [0.2, 0.8, 1.5])
@settings(max_examples=20, deadline=None, phases=QUICK)
@given(data=st.data(), script=stretches)
def test_steps_of_a_forked_stream_depend_on_audio_alone(
    fork_after_s: float, data: st.DataObject, script: list[PCM | str]
) -> None:
    options: dict[str, Any] = {"fork_after_s": fork_after_s, "forks": True}
    whole, cut = run(script, **options), run(script, data, **options)
    assert [(step.tag, step.forks) for step in cut.sent] == [(step.tag, step.forks) for step in whole.sent]
    forks = [step.tag for step in run(script, **options, limits=NEVER).sent if step.forks]
    assert [step.tag for step in whole.sent if step.forks] == forks


def test_a_stream_rests_only_after_the_fork_of_its_pause() -> None:
    """A fork needs the state after its step, and that is exported with the next answer."""
    bench = SessionBench(limits=RESTING, fork_after_s=1.5, forks=True)
    bench.send(np.concatenate([voiced("ab"), silence(6.0)]))
    bench.answer()
    forks = [place for place, step in enumerate(bench.sent) if step.forks]
    assert forks == [bench.computed - 3]
    rests = bench.session.rests
    assert rests is not None
    assert rests.channels[0].resting
