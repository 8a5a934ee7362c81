"""Questions about pauses, whose answers have a fixed place among the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model.turn_ends.whisper_features import SAMPLES
from server.audio.pcm import PCM
from server.recognition.events import FinalReason, TurnAnswered
from server.recognition.segments.endpointing import ScoredEnd
from server.recognition.segments.pauses import ANSWER_STEPS, ASK_S, LastAudio, LevelMeter, PauseQuestions
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench

RATE, STEP = CONFIG.sample_rate, CONFIG.step_samples
STEP_S = STEP / RATE


def sound(seconds: float) -> PCM:
    """Return syllables: 120 ms of noise and 40 ms that are 26 dB lower."""
    noise = np.random.default_rng(4).normal(0, 3_000, round(seconds * RATE))
    low = np.arange(len(noise)) % (0.16 * RATE) >= 0.12 * RATE
    return np.where(low, noise / 20, noise).astype(np.int16)


def quiet(seconds: float) -> PCM:
    return np.random.default_rng(5).normal(0, 10, round(seconds * RATE)).astype(np.int16)


def steps(*parts: PCM) -> list[PCM]:
    audio = np.concatenate(parts)
    return [audio[first : first + STEP] for first in range(0, len(audio) - STEP + 1, STEP)]


def test_the_last_eight_seconds_are_kept() -> None:
    last, audio = LastAudio(), np.arange(3 * SAMPLES, dtype=np.int64).astype(np.int16)
    for count, step in enumerate(steps(audio), start=1):
        last.add(step)
        if count % 37 == 0 or count < 4:
            np.testing.assert_array_equal(last.samples, audio[: count * STEP][-SAMPLES:])


class _Channel:
    """A channel that takes answers until `answered` steps are answered."""

    def __init__(self) -> None:
        self.steps_sent = self.answered = 0
        self.taken = list[tuple[int, float | None]]()

    def take_answer(self, answer: float | None, after_step: int) -> bool:
        if self.answered > after_step:
            return False
        self.taken.append((after_step, answer))
        return True


def asked(*parts: PCM, each: Callable[[int, Any], None]) -> tuple[_Channel, list[Any]]:
    """Send audio; `each` is called after each step with the questions so far."""
    channel, questions = _Channel(), list[Any]()
    asking = PauseQuestions(channel, lambda audio, done: questions.append(done))
    meter = LevelMeter(CONFIG)
    for number, step in enumerate(steps(*parts), start=1):
        channel.steps_sent = number
        asking.sent(step, meter.push(step))
        each(number, questions)
    return channel, questions


def test_a_pause_is_asked_about_after_each_of_its_times() -> None:
    at = list[int]()

    def each(number: int, questions: list[Any]) -> None:
        if len(questions) > len(at):
            at.append(number)

    channel, questions = asked(sound(1.6), quiet(0.96), sound(0.8), quiet(0.4), sound(0.4), each=each)
    assert len(questions) == 3
    for number, (from_s, after_s) in zip(at, ((1.6, ASK_S[0]), (1.6, ASK_S[1]), (3.36, ASK_S[0])), strict=True):
        assert from_s + after_s <= number * STEP_S + 0.061
        assert number * STEP_S < from_s + after_s + STEP_S + 1e-6
    assert [answer for _, answer in channel.taken] == [None, None]


def test_a_short_gap_is_no_pause() -> None:
    channel, questions = asked(sound(1.6), quiet(0.12), sound(0.8), quiet(0.08), sound(0.8), each=lambda *_: None)
    assert (channel.taken, questions) == ([], [])


def test_an_answer_counts_a_fixed_number_of_steps_after_its_question() -> None:
    for delay in range(ANSWER_STEPS):
        due = dict[int, Any]()

        def each(number: int, questions: list[Any], due: dict[int, Any] = due, delay: int = delay) -> None:
            if questions:
                due[number + delay] = questions.pop()
            if number in due:
                assert due.pop(number)(0.7)

        channel, _ = asked(sound(1.6), quiet(0.48), sound(0.8), each=each)
        (first, answer), (over, none) = channel.taken
        assert (answer, none) == (0.7, None)
        assert 0 <= first - ANSWER_STEPS - (1.6 + ASK_S[0] - 0.06) / STEP_S < 2
        assert over > first


def test_an_answer_after_the_pause_is_dropped_and_one_after_its_step_is_late() -> None:
    channel, questions = asked(sound(1.6), quiet(0.48), sound(0.8), each=lambda *_: None)
    assert not questions[0](0.9)
    assert [answer for _, answer in channel.taken] == [None]
    channel, questions = asked(sound(1.6), quiet(0.4), each=lambda *_: None)
    channel.answered = channel.steps_sent + 1
    assert not questions[0](0.9)
    assert channel.taken == []


@pytest.mark.parametrize("answer", [None, 0.02, 0.98])
def test_the_answer_moves_the_end_of_an_utterance(answer: float | None) -> None:
    scored = ScoredEnd(0.97, 2.0)
    bench = SessionBench(scored_end=scored, endpointing_ms=0.0)
    if answer is not None:
        assert bench.session.channels[0].settings.take_answer(answer, 4)
    bench.send(np.concatenate([spell("yes"), silence(3.0)]))
    bench.answer()
    (final,) = bench.finals()
    assert final.reason is FinalReason.ENDPOINT
    expected_s = max(scored.delay_s(answer), 0.4 + CONFIG.delay_frames * CONFIG.frame_s)
    assert final.duration_s == pytest.approx(5 * 0.04 + expected_s, abs=STEP_S + 0.04)
    assert [e.probability for e in bench.events if isinstance(e, TurnAnswered)] == ([] if answer is None else [answer])
