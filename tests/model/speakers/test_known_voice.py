"""Whether a known voice speaks: by the best path over similarities, the same after a restore and in a copy."""

from __future__ import annotations

import numpy as np
import pytest

from model.speakers.known_voice import KnownVoice, others_in_recording
from model.speakers.online import KEPT
from model.speakers.vectors import SIZE


def voice(number: int) -> np.ndarray:
    return np.eye(SIZE, dtype=np.float32)[number]


def following(*numbers: int) -> KnownVoice:
    """Return what follows voice 0 after a window of each voice, one every 0.4 s."""
    known = KnownVoice(voice(0))
    take(known, *numbers)
    return known


def take(known: KnownVoice, *numbers: int, first: int = 0) -> None:
    for at, number in enumerate(numbers, start=first):
        known.take(voice(number), 0.4 * at, 0.4 * at + 1.6)


def others(known: KnownVoice, count: int) -> list[bool]:
    return [known.is_other(0.4 * at + 0.7, 0.4 * at + 0.9) for at in range(count)]


def test_a_word_is_of_the_voice_of_the_vector_nearest_to_its_middle() -> None:
    assert others(following(0, 0, 0, 7, 7, 7, 0, 0), 8) == [False] * 3 + [True] * 3 + [False] * 2


def test_a_voice_that_begins_later_is_known_at_once() -> None:
    assert others(following(3, 3, 0, 0), 4) == [True, True, False, False]


def test_a_single_vector_that_is_a_little_unlike_changes_nothing() -> None:
    known, unlike = KnownVoice(voice(0)), np.zeros(SIZE, np.float32)
    unlike[:2] = 0.2, np.sqrt(1 - 0.2**2)  # just below the threshold
    for at in range(5):
        known.take(unlike if at == 2 else voice(0), 0.4 * at, 0.4 * at + 1.6)
    assert others(known, 5) == [False] * 5
    assert KnownVoice(voice(0)).is_other(0.0, 1.0) is False, "nothing is known before the first vector"


def test_a_copy_and_a_restored_one_continue_alike_and_alone() -> None:
    known = following(*[0] * 40, *[7] * 60)
    restored, twin = KnownVoice(voice(0)), known.copy()
    restored.restore(known.state())
    assert restored.state() == twin.state() == known.state()
    assert len(known.state()) == KEPT * 18
    for each in (restored, twin):
        take(each, 0, 0, 0, first=100)
    assert restored.state() == twin.state() != known.state()
    assert others(restored, 103)[-4:] == [True, False, False, False]
    assert others(known, 100)[-1] is True


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(ValueError, match="known voice"):
        KnownVoice(voice(0)).restore(b"x")


def test_a_recording_is_compared_as_a_whole() -> None:
    vectors = np.stack([voice(number) for number in (0, 0, 7, 7, 7, 0, 0)])
    spans_s = np.array([(0.4 * at, 0.4 * at + 1.6) for at in range(7)])
    assert list(others_in_recording(vectors, spans_s, voice(0))) == [0, 0, 1, 1, 1, 0, 0]
