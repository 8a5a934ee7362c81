"""Partials: sent when the words changed, not more often than asked, and never against what was called stable."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.recognition.events import Event, Final, FinalReason, Partial
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.streams.session_bench import SessionBench

STEP_S = CONFIG.step_samples / CONFIG.sample_rate
TEXT = "one two three four five six seven eight"


def texts(event: Partial | Final) -> list[str]:
    return [word.text for word in event.words]


def test_a_partial_is_sent_only_when_its_words_changed() -> None:
    """The decoder counts a revision every frame; the same words again are no news."""
    bench = SessionBench(decoder=WaveringDecoder(), endpointing_ms=None)
    bench.send(np.concatenate([spell(TEXT + " "), silence(4.0)]))
    bench.answer()
    partials = bench.partials()
    assert len(partials) > 20
    assert all(texts(before) != texts(after) for before, after in pairwise(partials))
    last_change_s = len(TEXT + " ") * 0.08 + 20 * 0.04
    assert partials[-1].start_s + partials[-1].duration_s <= last_change_s + 4 * STEP_S


def test_word_that_became_stable_is_news_only_with_tell_stable() -> None:
    audio = np.concatenate([spell("one two "), silence(2.0)])
    plain, stable = SessionBench(endpointing_ms=None), SessionBench(endpointing_ms=None, tell_stable=True)
    for bench in (plain, stable):
        bench.send(audio)
        bench.answer()
    assert plain.partials()[-1].stable_words == 1, "its last word's end changed no word"
    assert stable.partials()[-1].stable_words == 2
    keys = [(texts(p), p.stable_words) for p in stable.partials()]
    assert all(before != after for before, after in pairwise(keys))


@pytest.mark.parametrize("interval_ms", [0, 80, 200, 1_000])
def test_partials_of_a_segment_keep_their_interval_and_lose_no_change(interval_ms: int) -> None:
    bench = SessionBench(partial_interval_ms=interval_ms, endpointing_ms=None)
    bench.send(np.concatenate([spell(TEXT), silence(2.0)]))
    bench.answer()
    ends = [p.start_s + p.duration_s for p in bench.partials()]
    assert all(after - before >= interval_ms / 1_000 - 1e-9 for before, after in pairwise(ends))
    assert texts(bench.partials()[-1]) == TEXT.split(), "the last change is sent, late at worst"


def test_the_same_words_in_the_next_segment_are_news() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([spell("a"), silence(1.0), spell("a"), silence(1.0)]))
    bench.answer()
    assert [texts(e) for e in bench.events if isinstance(e, Partial | Final)] == [["a"]] * 4


def test_words_left_open_by_a_cut_come_in_another_partial() -> None:
    """A client drops the partial it showed when a final comes; the words that the final left out must come back."""
    bench = SessionBench(limits=Limits(max_utterance_s=1.0))
    bench.send(spell("one two three four"))
    bench.answer()
    cut = next(i for i, e in enumerate(bench.events) if isinstance(e, Final))
    final, after = bench.events[cut], bench.events[cut + 1]
    assert isinstance(final, Final)
    assert isinstance(after, Partial)
    assert final.reason is FinalReason.MAX_LEN
    assert texts(after), "the open word"
    assert after.duration_s <= 2 * STEP_S + 1e-9


words = st.lists(st.text("abcde", min_size=1, max_size=4), min_size=1, max_size=12).map(" ".join)
stretches = st.lists(st.tuples(words, st.integers(0, 12_000)), min_size=1, max_size=4)


def segments(events: list[Event]) -> list[list[Partial | Final]]:
    """Partials up to and with each final."""
    found: list[list[Partial | Final]] = [[]]
    for event in events:
        if isinstance(event, Partial | Final):
            found[-1].append(event)
            if isinstance(event, Final):
                found.append([])
    return [segment for segment in found if segment]


options = st.fixed_dictionaries(
    {
        "every_step": st.booleans(),
        "tell_stable": st.booleans(),
        "partial_interval_ms": st.sampled_from([0.0, 240.0]),
        "endpointing_ms": st.sampled_from([None, 400.0]),
    }
)


@settings(max_examples=60)
@given(stretches, options, st.sampled_from([1.5, 30.0]))
def test_stable_words_never_change(script: list[tuple[str, int]], asked: dict[str, Any], longest_s: float) -> None:
    limits = Limits(max_utterance_s=longest_s, max_backlog_s=1e9)
    bench = SessionBench(decoder=WaveringDecoder(), limits=limits, **asked)
    for text, samples in script:
        bench.send(np.concatenate([spell(text + " "), silence(samples / 16_000)]))
        bench.answer()
    bench.close()
    bench.answer()
    for segment in segments(bench.events):
        stable: tuple[object, ...] = ()
        for event in segment:
            assert event.words[: len(stable)] == stable, "not even their times"
            if isinstance(event, Partial):
                assert event.stable_words >= len(stable)
                stable = event.words[: event.stable_words]
