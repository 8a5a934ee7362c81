"""One channel: segments, endpoints, flushes and their order, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from session_bench import SessionBench
from spelling import CONFIG, silence, spell

from model.config import ModelConfig
from server.audio.pcm import PCM
from server.errors import BacklogExceeded, CloseReason
from server.recognition.events import Closed, Final, FinalReason, Partial, SpeechStarted, UtteranceGap
from server.recognition.session import Limits
from server.recognition.steps import Marker, StepCutter, StepTag

STEP_S = CONFIG.step_samples / CONFIG.sample_rate


def test_closed_stream_has_the_words_of_its_audio() -> None:
    bench = SessionBench()
    bench.send(spell("turn the heating down"))
    bench.close()
    bench.answer()
    assert bench.text() == "turn the heating down"
    assert bench.events[-1] == Closed(CloseReason.CLOSE_STREAM, 21 * 0.08)


def test_endpoint_comes_after_the_requested_silence_and_not_before() -> None:
    bench = SessionBench(endpointing_ms=600)
    bench.send(np.concatenate([spell("yes"), silence(2.0)]))
    bench.answer()
    (final,) = bench.finals()
    last_letter_s = 5 * 0.04
    lookahead_s = CONFIG.delay_frames * CONFIG.frame_s
    assert final.reason is FinalReason.ENDPOINT
    assert last_letter_s + 0.6 + lookahead_s <= final.duration_s <= last_letter_s + 0.6 + lookahead_s + STEP_S


def test_an_endpoint_shorter_than_the_pauses_inside_words_is_held_to_the_minimum() -> None:
    asked_nothing, at_minimum = SessionBench(endpointing_ms=10), SessionBench(endpointing_ms=400)
    for bench in (asked_nothing, at_minimum):
        bench.send(np.concatenate([spell("one"), silence(1.0), spell("two"), silence(1.0)]))
        bench.answer()
    assert asked_nothing.events == at_minimum.events
    assert [f.reason for f in asked_nothing.finals()] == [FinalReason.ENDPOINT] * 2


def test_without_endpointing_silence_closes_nothing() -> None:
    bench = SessionBench(endpointing_ms=None)
    bench.send(np.concatenate([spell("one "), silence(5.0), spell("two")]))
    bench.answer()
    assert not bench.finals()


def test_finalize_answers_with_the_pending_text_and_the_exact_number_of_samples() -> None:
    bench = SessionBench()
    bench.send(spell("hello")[:-333])
    bench.finalize()
    bench.answer()
    (final,) = bench.finals()
    assert (final.reason, bench.text()) == (FinalReason.FINALIZE, "hello")
    assert final.duration_s == (5 * 2 * 640 - 333) / 16_000


def test_finalize_without_new_audio_gets_an_empty_final_and_no_step() -> None:
    bench = SessionBench()
    bench.finalize()
    assert bench.events == [Final(0, 0.0, 0.0, (), FinalReason.FINALIZE)]
    bench.send(spell("a"))
    bench.finalize()
    backlog_s = bench.session.backlog_s
    bench.finalize()
    assert len(bench.events) == 1, "the second waits for the first"
    assert bench.session.backlog_s == backlog_s, "and costs the model nothing"
    bench.answer()
    assert bench.events[-1] == Final(0, 0.08, 0.0, (), FinalReason.FINALIZE)
    assert len(bench.finals()) == 3


def test_recognition_starts_afresh_after_finalize() -> None:
    """What is said after it depends on nothing before it, whatever the remainder of a step was."""
    alone = SessionBench()
    alone.send(spell("second one"))
    alone.close()
    alone.answer()
    after = SessionBench()
    after.send(spell("first")[:-777])
    after.finalize()
    after.send(spell("second one"))
    after.close()
    after.answer()
    shift = after.finals()[0].duration_s
    assert [w.text for w in after.finals()[1].words] == ["second", "one"]
    for word, same in zip(after.finals()[1].words, alone.finals()[0].words, strict=True):
        assert word.start_s - shift == pytest.approx(same.start_s)
        assert word.confidence == same.confidence, "the model's state is a fresh one"


def test_text_still_in_the_lookahead_at_an_endpoint_is_not_lost() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([spell("one"), silence(0.44), spell("t")]))
    bench.close()
    bench.answer()
    assert bench.text() == "one t"


def test_a_long_segment_is_cut_behind_its_last_finished_word() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=2.0))
    bench.send(spell("alpha bravo charlie delta echo foxtrot"))
    bench.close()
    bench.answer()
    assert {f.reason for f in bench.finals()[:-1]} == {FinalReason.MAX_LEN}
    assert all(f.duration_s <= 2.0 + STEP_S for f in bench.finals())
    assert bench.text() == "alpha bravo charlie delta echo foxtrot"


def test_a_word_without_an_end_is_cut_after_the_overtime() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=1.0))
    bench.send(spell("ab" * 60))
    bench.answer()
    assert 6.0 <= bench.finals()[0].duration_s <= 6.0 + STEP_S


def test_silence_is_cut_into_bounded_empty_segments() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=2.0))
    bench.send(silence(9.0))
    bench.answer()
    assert [(f.duration_s, f.words) for f in bench.finals()] == [(pytest.approx(2.0), ())] * 4


@pytest.mark.parametrize(
    ("options", "audio", "reasons"),
    [
        # (1) nothing said for 2.4 s: an empty endpoint, again and again; three frames of it are still in the lookahead
        ({}, [silence(2.4)], []),
        ({}, [silence(2.4 + 0.12 + 0.08)], ["endpoint"]),
        ({}, [silence(7.5)], ["endpoint"] * 3),
        ({"endpointing_ms": None}, [silence(7.5)], []),
        ({"limits": Limits(silence_endpoint_ms=None)}, [silence(7.5)], []),
        ({"limits": Limits(silence_endpoint_ms=1_000.0)}, [silence(2.5)], ["endpoint"] * 2),
        # (2) silence behind words; then (1) begins anew
        ({"endpointing_ms": 800}, [spell("yes"), silence(0.8)], []),
        ({"endpointing_ms": 800}, [spell("yes"), silence(1.0)], ["endpoint"]),
        ({"endpointing_ms": 800}, [spell("yes"), silence(3.0)], ["endpoint"]),
        ({"endpointing_ms": 800}, [spell("yes"), silence(3.6)], ["endpoint", "endpoint"]),
        # (3) too long, with and without endpoints
        ({"limits": Limits(max_utterance_s=1.0)}, [spell("one two three")], ["max_len"]),
        ({"limits": Limits(max_utterance_s=1.0), "endpointing_ms": None}, [spell("one two three")], ["max_len"]),
    ],
)
def test_the_three_endpoint_rules(options: dict[str, Any], audio: list[PCM], reasons: list[str]) -> None:
    bench = SessionBench(**options)
    bench.send(np.concatenate(audio))
    bench.answer()
    assert [f.reason for f in bench.finals()] == reasons


def test_silent_segment_ends_before_audio_still_in_the_lookahead() -> None:
    """Speech begins just before the cut: its words keep their times, inside the next segment."""
    bench = SessionBench()
    bench.send(np.concatenate([silence(2.48), spell("soon"), silence(1.0)]))
    bench.answer()
    empty, final = bench.finals()
    assert (empty.words, empty.reason) == ((), FinalReason.ENDPOINT)
    assert 2.4 <= empty.duration_s < 2.48
    assert final.words[0].start_s == pytest.approx(2.48)


def test_with_every_step_a_silent_endpoint_ends_at_its_own_step() -> None:
    bench = SessionBench(every_step=True)
    bench.send(silence(4.0))
    bench.answer()
    ends = [e.start_s + e.duration_s for e in bench.events if isinstance(e, Partial | Final)]
    assert ends == pytest.approx([STEP_S * n for n in range(1, 51)])


def test_with_voice_activity_both_models_must_agree_on_silence() -> None:
    """A voice without words: not silence, and after it the time begins anew."""
    hum = np.full(16_000, 100, np.int16)
    bench = SessionBench(voice=True)
    bench.send(np.concatenate([silence(2.0), hum, silence(2.3)]))
    bench.answer()
    assert not bench.finals()
    bench.send(silence(0.3))
    bench.answer()
    assert [f.reason for f in bench.finals()] == [FinalReason.ENDPOINT]


def test_the_delay_of_an_endpoint_is_the_audio_behind_its_last_word() -> None:
    bench = SessionBench(endpointing_ms=600)
    bench.send(np.concatenate([spell("yes"), silence(1.0)]))
    bench.answer()
    (final,) = bench.finals()
    assert final.endpoint_delay_s == pytest.approx(final.duration_s - final.words[-1].end_s)
    assert 0.6 + 0.12 <= final.endpoint_delay_s <= 0.6 + 0.12 + STEP_S
    bench.send(spell("no"))
    bench.close()
    bench.answer()
    assert bench.finals()[-1].words
    assert bench.finals()[-1].endpoint_delay_s is None, "nobody waited for silence"


def test_speech_starts_once_an_utterance() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([silence(0.4), spell("one two"), silence(1.0), spell("three"), silence(1.0)]))
    bench.answer()
    starts = [e.time_s for e in bench.events if isinstance(e, SpeechStarted)]
    assert starts == pytest.approx([0.4, 0.4 + 0.56 + 1.0])


def test_a_cut_for_length_does_not_start_speech_again() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=1.0))
    bench.send(spell("one two three four five"))
    bench.answer()
    assert len([e for e in bench.events if isinstance(e, SpeechStarted)]) == 1


def test_utterance_gap_comes_once_and_only_after_frozen_words() -> None:
    bench = SessionBench(utterance_end_ms=1_000)
    bench.send(np.concatenate([spell("one"), silence(2.5), spell("two"), silence(2.5)]))
    bench.answer()
    kinds = [type(e) for e in bench.events if isinstance(e, Final | UtteranceGap)]
    assert kinds == [Final, UtteranceGap, Final, UtteranceGap]
    gaps = [e.last_word_end_s for e in bench.events if isinstance(e, UtteranceGap)]
    assert gaps == [f.words[-1].end_s for f in bench.finals()]


def test_a_gap_freezes_the_words_that_no_endpoint_froze() -> None:
    bench = SessionBench(endpointing_ms=None, utterance_end_ms=1_000)
    bench.send(np.concatenate([spell("one"), silence(2.0)]))
    bench.answer()
    final, gap = bench.events[-2:]
    assert isinstance(final, Final)
    assert final.reason is FinalReason.MAX_LEN
    assert gap == UtteranceGap(0, final.words[-1].end_s)


def test_new_words_cancel_a_gap() -> None:
    bench = SessionBench(utterance_end_ms=1_500)
    bench.send(np.concatenate([spell("one"), silence(1.0), spell("two"), silence(1.0), spell("three")]))
    bench.answer()
    assert not [e for e in bench.events if isinstance(e, UtteranceGap)]


def test_partials_come_when_the_text_changed_and_only_then() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([silence(1.0), spell("ab"), silence(0.3)]))
    bench.answer()
    assert [[w.text for w in p.words] for p in bench.partials()] == [["a"], ["ab"]]
    every = SessionBench(every_step=True, partials=False)
    every.send(np.concatenate([silence(1.0), spell("ab")]))
    every.answer()
    ends = [e.start_s + e.duration_s for e in every.events if isinstance(e, Partial)]
    assert ends == pytest.approx([STEP_S * n for n in range(1, len(ends) + 1)])


def test_stable_words_are_those_that_later_partials_keep() -> None:
    bench = SessionBench()
    bench.send(spell("one two three four"))
    bench.answer()
    for earlier, later in zip(bench.partials(), bench.partials()[1:], strict=False):
        assert later.words[: earlier.stable_words] == earlier.words[: earlier.stable_words]


def test_close_for_idleness_sends_pending_text_and_no_empty_final() -> None:
    for audio, finals in ((b"", 0), (silence(2.0).tobytes(), 0), (spell("yes").tobytes(), 1)):
        bench = SessionBench()
        bench.send(audio)
        bench.answer()
        bench.close(CloseReason.IDLE)
        bench.answer()
        assert len(bench.finals()) == finals
        assert isinstance(bench.events[-1], Closed)


def test_closing_twice_and_audio_after_the_end_change_nothing() -> None:
    bench = SessionBench()
    bench.send(spell("a"))
    bench.close()
    bench.close()
    bench.send(spell("b"))
    bench.answer()
    assert bench.text() == "a"
    assert len([e for e in bench.events if isinstance(e, Closed)]) == 1


def test_more_unanswered_audio_than_allowed_is_refused() -> None:
    bench = SessionBench(limits=Limits(max_backlog_s=1.0))
    bench.send(silence(0.96))
    assert bench.session.backlog_s == pytest.approx(0.96)
    with pytest.raises(BacklogExceeded):
        bench.send(silence(0.08))
    bench.answer()
    bench.send(silence(0.08))


def test_channels_are_recognised_apart_or_mixed_down() -> None:
    left, right = spell("left"), np.concatenate([spell("rig"), silence(0.08)])
    both = np.stack([left, right], axis=1)
    apart = SessionBench(channels=2, multichannel=True)
    apart.send(both.tobytes())
    apart.close()
    apart.answer()
    assert (apart.text(0), apart.text(1)) == ("left", "rig")
    mixed = SessionBench(channels=2)
    mixed.send(np.stack([left, left], axis=1).tobytes())
    mixed.close()
    mixed.answer()
    assert mixed.text() == "left"


def test_finalize_of_one_channel_leaves_the_other_alone() -> None:
    bench = SessionBench(channels=2, multichannel=True)
    bench.send(np.stack([spell("left"), spell("rest")], axis=1).tobytes())
    bench.finalize(1)
    bench.answer()
    assert [f.channel for f in bench.events if isinstance(f, Final)] == [1]


def test_the_end_comes_when_the_last_channel_is_flushed() -> None:
    bench = SessionBench(channels=2, multichannel=True)
    bench.send(np.stack([spell("left"), spell("rest")], axis=1).tobytes())
    bench.close()
    bench.answer(channel=1)
    assert not any(isinstance(e, Closed) for e in bench.events)
    bench.answer(channel=0)
    assert isinstance(bench.events[-1], Closed)


def test_with_voice_activity_speech_starts_with_the_voice_and_an_endpoint_needs_both_silences() -> None:
    """A hum without letters keeps the segment open, and speech starts before the first letter is known."""
    hum = np.full(16_000, 100, np.int16)  # not silence to the voice model, blank to the recogniser
    bench = SessionBench(voice=True)
    bench.send(np.concatenate([silence(0.512), spell("yes"), hum, silence(1.0)]))
    bench.answer()
    (start,) = [e for e in bench.events if isinstance(e, SpeechStarted)]
    (final,) = bench.finals()
    assert start.time_s == pytest.approx(0.512, abs=0.033)
    assert final.duration_s >= 0.512 + 0.24 + 1.0 + 0.4


def test_with_voice_activity_a_gap_precedes_the_speech_that_ends_it() -> None:
    bench = SessionBench(voice=True, utterance_end_ms=1_000)
    hum = np.full(9_600, 100, np.int16)  # 0.6 s of voice before the first letter
    bench.send(
        np.concatenate([spell("one"), silence(1.1), spell("two"), silence(0.9), hum, spell("six"), silence(2.0)])
    )
    bench.answer()
    kinds = [type(e) for e in bench.events if isinstance(e, SpeechStarted | UtteranceGap)]
    assert kinds == [SpeechStarted, UtteranceGap, SpeechStarted, SpeechStarted, UtteranceGap]
    assert bench.text() == "one two six"


@pytest.mark.parametrize("late", [True, False], ids=["answered late", "answered at once"])
def test_changed_endpointing_affects_only_later_audio_however_late_it_is_answered(*, late: bool) -> None:
    bench = SessionBench()
    said = np.concatenate([spell("one"), silence(0.8), spell(" two"), silence(0.8)])

    def send() -> None:
        bench.send(said)
        if not late:
            bench.answer()

    send()
    bench.endpoint(2_000.0)
    send()
    bench.endpoint(100.0)  # less than the operator's minimum: that
    send()
    bench.answer()
    ends = [" ".join(word.text for word in final.words) for final in bench.finals()]
    assert ends == ["one", "two", "one two", "one", "two"]


def test_steps_carry_the_stream_time_of_their_last_sample_at_any_rate() -> None:
    cutter = StepCutter(0, 44_100, CONFIG)
    work = cutter.cut(np.zeros(44_100, np.int16), 1.0) + cutter.flush(Marker.CLOSE, 2.0)
    tags = [w.tag for w in work if isinstance(w.tag, StepTag)]
    assert tags[0].end_s == pytest.approx(0.08)
    assert tags[-1].end_s == 1.0
    assert tags[-1].marker is Marker.CLOSE
    assert [t.end_s for t in tags] == sorted(t.end_s for t in tags)


DOUBTING = ModelConfig(lookahead=CONFIG.lookahead)  # a network that may hear words in noise


@pytest.mark.parametrize("every_step", [False, True])
def test_words_in_audio_of_one_level_are_neither_speech_nor_text(every_step: bool) -> None:
    """Silence after them closes no utterance either, but the segment, as without any letter."""
    bench = SessionBench(config=DOUBTING, every_step=every_step, utterance_end_ms=1_000)
    bench.send(np.concatenate([spell("and"), silence(1.0), spell("the"), silence(2.0)]))
    bench.close()
    bench.answer()
    assert bench.text() == ""
    assert all(not partial.words and not partial.stable_words for partial in bench.partials())
    assert not [e for e in bench.events if isinstance(e, SpeechStarted | UtteranceGap)]
    assert [final.reason for final in bench.finals()] == [FinalReason.ENDPOINT, FinalReason.CLOSE]


def test_words_in_audio_whose_level_moves_are_speech() -> None:
    sway = np.concatenate([np.resize([a] * 6 + [-a] * 6, 640) for a in (200, 20) * 20]).astype(np.int16)
    bench = SessionBench(config=DOUBTING)
    bench.send(spell("yes") + sway[: len(spell("yes"))])
    bench.close()
    bench.answer()
    assert bench.text() == "yes"
    assert isinstance(bench.events[0], SpeechStarted)
