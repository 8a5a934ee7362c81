"""What the rulers measure, on messages with known times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadtest.rulers.alignment import Aligner, SpokenWord
from loadtest.rulers.playing import PIECE_S
from loadtest.rulers.report import figure
from loadtest.rulers.ttfs import FINALIZE, FinalTake
from loadtest.rulers.word_delay import MIN_DELAY_S, delays, shown, turn_delays
from tests.loadtest.rulers.test_voice import recording
from tutti_asr_client.messages import Results

T0 = 8_675_309.25


def result(*words: str, final: bool = False, stable: int = 0, **more: Any) -> bytes:
    alternative = {"transcript": " ".join(words), "words": [{"word": w, "start": 0.0, "end": 0.0} for w in words]}
    fields = {"channel": {"alternatives": [alternative]}, "is_final": final, "tutti": {"stable_words": stable}}
    return msgspec.json.encode({"type": "Results", **fields, **more})


def test_ttfs_is_from_the_last_stop_less_its_silence_to_the_last_final() -> None:
    take = FinalTake((b"",) * 100, [20, 90])
    take.started(T0)
    assert sorted(take.marks) == [20, 90]
    assert [take.after(piece, T0 + (piece + 1) * PIECE_S) for piece in (20, 90)] == [FINALIZE, FINALIZE]
    take.message(result("one", final=True, from_finalize=True), T0 + 1.90)  # answers the first
    take.message(result("two", final=True), T0 + 1.91)  # an endpoint
    assert not take.over
    take.message(result(final=True, from_finalize=True), T0 + 1.93)
    assert take.over
    assert take.ttfs_s == pytest.approx(1.93 - (91 * PIECE_S - 0.2))


def test_percentiles_are_interpolated_linearly() -> None:
    """As stt-benchmark's `_percentile`: at (p / 100) * (n - 1)."""
    found = figure("f", "a", "b", [0.1, 0.2, 0.4, 0.3])
    assert (found.p50, found.p95, found.p99, found.max, found.mean, found.count) == (
        250.0,
        385.0,
        397.0,
        400.0,
        250.0,
        4,
    )


def received(*messages: tuple[bytes, float]) -> list[tuple[Results, float]]:
    return [(msgspec.json.decode(frame, type=Results), now_s) for frame, now_s in messages]


def test_a_word_is_shown_when_it_appears_as_it_stays() -> None:
    results = received(
        (result("turn"), 0.5),
        (result("turn", "own"), 0.8),
        (result("turn", "on", stable=1), 0.9),
        (result("turn", "on", "the", stable=1), 1.0),
        (result("turn", "on", stable=2), 1.1),  # taken back
        (result("turn", "on", "the", final=True, speech_final=True), 1.6),
        (result("fan", final=True), 2.0),  # the next segment
    )
    words = shown(results)
    assert [(word.text, word.first_s, word.stable_s, word.final_s) for word in words] == [
        ("turn", 0.5, 0.9, 1.6),
        ("on", 0.9, 1.1, 1.6),
        ("the", 1.6, 1.6, 1.6),
        ("fan", 2.0, 2.0, 2.0),
    ]
    spoken = [SpokenWord("turn", 0.3), SpokenWord("on", 0.5), SpokenWord("a", 0.6), SpokenWord("fan", 1.2)]
    measured = [tuple(round(delay_s, 3) for delay_s in each) for each in delays(spoken, words)]
    assert measured == [(0.2, 0.6, 1.3), (0.4, 0.6, 1.1), (0.8, 0.8, 0.8)]  # "a" was not recognized


def test_the_delays_of_a_turn_have_livekits_bounds() -> None:
    ended = received((result("one", final=True, speech_final=True), 1.9), (result(final=True), 4.0))
    assert list(turn_delays(ended, 1.2)) == pytest.approx([0.7, 0.7])
    assert list(turn_delays(ended, 1.8)) == pytest.approx([0.1, MIN_DELAY_S])
    assert turn_delays(received((result("one"), 1.0)), 0.5) == (None, None)
    assert turn_delays(received((result("one", final=True), 1.0)), 0.5) == (0.5, None)


def test_words_end_where_their_sound_ends() -> None:
    aligner, spoken = Aligner(), recording("order", 0.0)
    words = aligner.align(spoken, "where is my order")
    assert words is not None
    assert [word.text for word in words] == ["where", "is", "my", "order"]
    assert words[-1].end_s == pytest.approx(1.65, abs=0.1)  # silero's end of speech is 1.63
    assert aligner.align(spoken, "where is my ordxr") is None  # not in the dictionary
