"""Figures of the labels of speakers: perfect and swapped numbers are right, errors are counted."""

import numpy as np
import pytest

from tutti_asr_lab.training.speakers.conversations import Conversation, Spoken
from tutti_asr_lab.training.speakers.diarization import Vectors, figures, live_labels, right, voices, whole_labels

TURNS = (0, 1, 0, 1)  # of eight words each
WORDS = tuple(Spoken(4.0 * t + 0.4 * k, 4.0 * t + 0.4 * k + 0.4, who) for t, who in enumerate(TURNS) for k in range(8))
CONVERSATION = Conversation(np.zeros(16_000, np.int16), WORDS, WORDS)
TRUTH = [word.speaker for word in WORDS]


def vectors():
    """Return a vector in the middle of each word: one axis for each speaker."""
    spans_s = np.array([(max(0.0, word.start_s - 0.6), word.end_s) for word in WORDS])
    return Vectors(np.eye(256, dtype=np.float32)[TRUTH], spans_s)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (5, 3)])
def test_right_labels_have_figures_of_1_whatever_their_numbers(numbers):
    result = figures([CONVERSATION], [vectors()], lambda _words, _vectors: [numbers[label] for label in TRUTH])
    assert (result.words, result.voices) == (1.0, 1.0)


def test_one_label_for_all_has_half_the_words_right_and_a_wrong_number_of_voices():
    result = figures([CONVERSATION], [vectors()], lambda words, _: [0] * len(words))
    assert (result.words, result.voices) == (0.5, 0.0)


def test_words_without_a_speaker_are_wrong():
    assert right(WORDS, [-1, *TRUTH[1:]]) == len(WORDS) - 1


def test_a_voice_has_a_second_of_words():
    assert voices([0, 0, 0, 1, 1, -1, -1, -1]) == 1


def test_labels_of_vectors_far_apart_are_right_live_and_of_the_whole():
    assert right(WORDS, whole_labels(WORDS, vectors())) == len(WORDS)
    assert right(WORDS, live_labels(WORDS, vectors())) >= 0.8 * len(WORDS)
