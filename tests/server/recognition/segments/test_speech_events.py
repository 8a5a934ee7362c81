"""When speech is said to start and an utterance to be over, and which words are neither."""

from __future__ import annotations

import numpy as np
import pytest

from model.config import ModelConfig
from server.recognition.events import Final, FinalReason, SpeechStarted, UtteranceGap
from server.recognition.session_options import Limits
from server.recognition.steps import Work
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench


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


def test_with_auto_the_voice_starts_speech_and_endpoints_are_those_of_the_words() -> None:
    """Events change no transcript: with a hum after the words, the final comes as it does without the model."""
    hum = np.full(16_000, 100, np.int16)
    audio = np.concatenate([silence(0.512), hum[:8_000], spell("yes"), hum, silence(3.0)])
    runs = [SessionBench(voice=voice) for voice in (False, "auto")]
    for bench in runs:
        bench.send(audio)
        bench.answer()
    assert runs[0].finals() == runs[1].finals()
    assert [e.time_s for e in runs[0].events if isinstance(e, SpeechStarted)] == pytest.approx([1.012], abs=0.04)
    assert [e.time_s for e in runs[1].events if isinstance(e, SpeechStarted)] == pytest.approx([0.512], abs=0.033)


def test_a_start_by_voice_comes_within_a_step_and_a_window() -> None:
    bench = SessionBench(voice="auto")
    onset_s = 0.5
    bench.send(np.concatenate([silence(onset_s), spell("yes"), silence(1.0)]))
    while not bench.events:
        bench.answer(1)
    assert isinstance(bench.events[0], SpeechStarted)
    assert bench.session.channels[0].segment.cursor_s <= onset_s + 0.032 + 0.08


class DeafBench(SessionBench):
    """A voice-activity model that finds no speech before sample `from_sample`."""

    from_sample = 10**9

    def _hear(self, piece: Work) -> None:
        deaf = piece.tag.end_sample <= self.from_sample  # type: ignore[union-attr]
        super()._hear(Work(piece.channel, np.zeros_like(piece.pcm) if deaf else piece.pcm, piece.tag))


def test_words_without_a_voice_start_no_speech() -> None:
    """They are mostly words in noise: text alone starts speech three times as often there."""
    audio = np.concatenate([silence(0.4), spell("one two three"), silence(1.0)])
    deaf, late = DeafBench(voice="auto"), DeafBench(voice="auto")
    late.from_sample = 16_000
    for bench, starts in ((deaf, []), (late, [0.992])):
        bench.send(audio)
        bench.answer()
        assert bench.text() == "one two three"
        assert [e.time_s for e in bench.events if isinstance(e, SpeechStarted)] == pytest.approx(starts, abs=0.033)


def test_each_utterance_starts_in_a_voice_that_never_pauses() -> None:
    hum = np.full(16_000, 100, np.int16)
    bench = SessionBench(voice="auto")
    bench.send(np.concatenate([spell("one"), hum, spell("two"), hum]))
    bench.answer()
    assert [e.time_s for e in bench.events if isinstance(e, SpeechStarted)] == pytest.approx([0.0, 1.24], abs=0.05)


def test_a_voice_without_words_delays_a_gap_for_a_second_at_most() -> None:
    hum = np.full(3 * 16_000, 100, np.int16)
    bench = SessionBench(voice="auto", utterance_end_ms=1_000)
    bench.send(np.concatenate([spell("one"), silence(0.6), hum]))
    bench.answer()
    kinds = [type(e) for e in bench.events if isinstance(e, SpeechStarted | UtteranceGap)]
    assert kinds == [SpeechStarted, SpeechStarted, UtteranceGap]


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
