"""Interims with `interim_stability=high`: they end before a word that may still change."""

from __future__ import annotations

import numpy as np
import pytest

from model.ctc.words import Word
from model.evaluation.stability import ShownWord, Stability, View
from server.recognition.events import Final, Partial
from server.recognition.segments.partials import SettledWords
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.streams.session_bench import SessionBench

STEP_S = 0.08


class Steps:
    """Settled words at steps of 80 ms, with the agreement that each step names."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self.settled, self.at_s, self.step_s = SettledWords(), 0.0, step_s
        self.asked = 0

    def step(self, text: str, *shares: float, stable: int = 0) -> int:
        self.at_s += self.step_s
        words = [Word(one, 0.0, 0.0, 1.0) for one in text.split()]

        def agreement() -> tuple[float, ...]:
            self.asked += 1
            return shares

        return self.settled.count(words, stable, agreement, self.at_s)


def test_the_last_word_needs_less_agreement_the_longer_it_stands() -> None:
    for share, steps in ((1.0, 1), (0.92, 1), (0.8, 2), (0.7, 3), (0.6, 4), (0.5, None)):
        bench = Steps()
        counts = [bench.step("one", share) for _ in range(8)]
        assert (counts.index(1) if 1 in counts else None) == steps, share


def test_a_word_that_others_follow_needs_no_time() -> None:
    assert Steps().step("one two", 0.8, 0.8) == 1
    assert Steps().step("one two three", 1.0, 0.7, 0.5) == 1
    bench = Steps()
    assert [bench.step("one two", 0.7, 0.3) for _ in range(2)] == [0, 1]
    bench = Steps()
    assert [bench.step("one two", 0.55, 0.3) for _ in range(6)] == [0, 0, 0, 0, 0, 1]


def test_a_shown_word_stays_until_the_text_changes() -> None:
    bench = Steps()
    assert [bench.step("one", 0.95) for _ in range(2)] == [0, 1]
    assert bench.step("one", 0.1) == 1
    assert bench.step("one two", 0.1, 0.1) == 1
    assert bench.step("won two", 0.1, 0.1) == 0
    assert bench.step("won two", 0.1, 0.1, stable=1) == 1, "what can no longer change is shown"


def test_agreement_is_asked_for_only_where_a_word_is_not_shown() -> None:
    bench = Steps()
    for _ in range(5):
        bench.step("one", 1.0)
    assert bench.asked == 2


def test_long_steps_do_not_delay_a_word_by_a_whole_one() -> None:
    assert Steps(step_s=0.32).step("one", 0.7) == 1


def test_a_restored_state_continues_as_the_saved_one() -> None:
    one, two = Steps(), Steps()
    for bench in (one, two):
        bench.step("one", 1.0)
        bench.step("one two", 1.0, 0.7)
    two.settled = SettledWords()
    two.settled.restore(one.settled.saved())
    for _ in range(3):
        assert one.step("one two", 1.0, 0.7) == two.step("one two", 1.0, 0.7)
    assert one.settled.saved() == two.settled.saved()


def stability(bench: SessionBench) -> Stability:
    """Return the figures of what a client was shown."""
    found = Stability()
    results = [event for event in bench.events if isinstance(event, Partial | Final)]
    found.follow(
        View(
            one.start_s + one.duration_s,
            tuple(ShownWord(word.text, word.end_s) for word in one.words),
            one.stable_words if isinstance(one, Partial) else 0,
            isinstance(one, Final),
        )
        for one in results
    )
    return found


@pytest.mark.parametrize("options", [{}, {"every_step": True}, {"tell_stable": True}])
def test_fewer_words_change_and_finals_are_the_same(options: dict[str, bool]) -> None:
    audio = np.concatenate([spell("one two three four"), silence(1.0), spell("five six"), silence(1.0)])
    low, high = (SessionBench(decoder=WaveringDecoder(), interim_stability=one, **options) for one in ("low", "high"))
    for bench in (low, high):
        bench.send(audio)
        bench.close()
        bench.answer()
    assert high.finals() == low.finals()
    assert stability(high).changed < stability(low).changed
    assert any(partial.words for partial in high.partials()), "words come before finals"
