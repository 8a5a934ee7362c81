"""Speakers of a stream and of a recording, from made vectors of voices."""

from __future__ import annotations

import numpy as np
import pytest

from model.speakers.online import KEPT, OnlineSpeakers
from model.speakers.vectors import SIZE, similarity
from model.speakers.whole import nearest, speakers_of_recording

HOP_S, WINDOW_S = 0.4, 1.6
Turns = list[tuple[int, int]]  # voice, number of vectors


def made(turns: Turns, seed: int = 0, noise: float = 0.045) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return vectors of voices that lie at right angles, their spans, and their voices."""
    dice = np.random.default_rng(seed)
    voices = np.eye(SIZE)[:8]
    owners = [voice for voice, count in turns for _ in range(count)]
    vectors = voices[owners] + noise * dice.normal(size=(len(owners), SIZE))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ends = WINDOW_S + HOP_S * np.arange(len(owners))
    return vectors.astype(np.float32), np.stack([ends - WINDOW_S, ends], axis=1), owners


def follow(speakers: OnlineSpeakers, vectors: np.ndarray, spans: np.ndarray) -> list[tuple[int | None, float]]:
    """Return the answer for the middle of each window, asked right after its vector."""
    answers = []
    for vector, (start, end) in zip(vectors, spans, strict=True):
        speakers.take(vector, start, end)
        answers.append(speakers.speaker_at((start + end) / 2, (start + end) / 2))
    return answers


def test_speakers_are_numbered_in_the_order_of_their_appearance() -> None:
    turns = [(3, 14), (1, 12), (3, 8), (5, 14), (1, 8)]
    vectors, spans, owners = made(turns)
    speakers = OnlineSpeakers()
    follow(speakers, vectors, spans)
    found = [speakers.speaker_at(*span)[0] for span in spans]
    names = {3: 0, 1: 1, 5: 2}
    assert found == [names[owner] for owner in owners]


def test_a_new_speaker_is_found_within_four_seconds_and_not_by_one_vector() -> None:
    vectors, spans, _ = made([(0, 14), (1, 1), (0, 6), (2, 12)])
    answers = [number for number, _ in follow(OnlineSpeakers(), vectors, spans)]
    assert answers[:21] == [0] * 21
    assert answers[-3:] == [1] * 3
    assert answers.index(1) - 21 <= 10


def test_a_number_stays_with_the_voice_for_which_it_was_returned() -> None:
    vectors, spans, _ = made([(0, 6), (1, 40), (0, 8), (1, 8)])
    answers = [number for number, _ in follow(OnlineSpeakers(), vectors, spans)]
    assert answers[:6] + answers[50:54] == [0] * 10
    assert answers[20:46] == [1] * 26


def test_one_voice_is_one_speaker() -> None:
    for seed in range(5):
        vectors, spans, _ = made([(0, 200)], seed)
        assert {number for number, _ in follow(OnlineSpeakers(), vectors, spans)} == {0}


def test_a_stream_that_listens_keeps_number_0_for_the_first_voice() -> None:
    vectors, spans, _ = made([(0, 2), (1, 16), (0, 12), (1, 12)])
    spans[2:] += 2.0
    last = {}
    for listens in (False, True):
        speakers = OnlineSpeakers(listens=listens)
        follow(speakers, vectors, spans)
        last[listens] = [speakers.speaker_at(*spans[at])[0] for at in (22, 36)]
        assert [speakers.copy().speaker_at(*spans[at])[0] for at in (22, 36)] == last[listens]
    assert last == {False: [1, 0], True: [0, 1]}


def test_in_doubt_a_word_is_of_the_first_voice_in_a_stream_that_listens() -> None:
    vectors, spans, _ = made([(0, 14), (1, 14)])
    between = vectors[:14].sum(axis=0) + 1.15 * vectors[14:].sum(axis=0)  # a little nearer to the second voice
    found = []
    for listens in (False, True):
        speakers = OnlineSpeakers(listens=listens)
        follow(speakers, vectors, spans)
        speakers.take((between / np.linalg.norm(between)).astype(np.float32), *(spans[-1] + 4.0))
        found.append(speakers.speaker_at(*(spans[-1] + 4.0))[0])
    assert found == [1, 0]


def test_a_change_after_a_pause_needs_less_than_one_without() -> None:
    vectors, spans, _ = made([(0, 14), (1, 14), (0, 10), (1, 2), (0, 10)], noise=0.08)
    mixed = vectors + 0.75 * vectors[0]  # similar to the first voice
    vectors[38:40] = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True))[38:40]
    late = spans.copy()
    late[38:, :] += 2.0
    late[40:, :] += 2.0
    found = []
    for times in (spans, late):
        speakers = OnlineSpeakers()
        follow(speakers, vectors, times)
        found.append([speakers.speaker_at(*times[index])[0] for index in (38, 39)])
    assert found == [[0, 0], [1, 1]]


def test_before_the_first_vector_there_is_no_speaker() -> None:
    assert OnlineSpeakers().speaker_at(0.0, 0.4) == (None, 0.0)


def test_there_are_no_more_speakers_than_allowed() -> None:
    vectors, spans, _ = made([(voice, 12) for voice in range(5)])
    numbers = {number for number, _ in follow(OnlineSpeakers(2), vectors, spans)}
    assert numbers == {0, 1}


def test_confidence_is_between_0_and_1_and_less_between_voices() -> None:
    vectors, spans, _ = made([(0, 14), (1, 14)])
    between = (vectors[0] + vectors[-1]) / np.linalg.norm(vectors[0] + vectors[-1])
    speakers = OnlineSpeakers()
    follow(speakers, vectors, spans)
    _, sure = speakers.speaker_at(*spans[-1])
    speakers.take(between, *(spans[-1] + 4.0))
    _, unsure = speakers.speaker_at(*(spans[-1] + 4.0))
    assert 0 <= unsure < sure - 0.2 <= 1


def test_a_restored_or_copied_state_continues_with_the_same_answers() -> None:
    vectors, spans, _ = made([(0, 12), (1, 12), (2, 12), (0, 12), (1, 12)])
    for middle in (0, 1, 13, 30, 50):
        first = OnlineSpeakers(4)
        follow(first, vectors[:middle], spans[:middle])
        second = OnlineSpeakers()
        second.restore(first.state())
        third = first.copy()
        rest = follow(first, vectors[middle:], spans[middle:])
        assert follow(second, vectors[middle:], spans[middle:]) == rest
        assert follow(third, vectors[middle:], spans[middle:]) == rest
        assert first.state() == second.state() == third.state()


def test_a_copy_is_independent() -> None:
    vectors, spans, _ = made([(0, 12), (1, 12)])
    speakers = OnlineSpeakers()
    follow(speakers, vectors[:12], spans[:12])
    before, other = speakers.state(), speakers.copy()
    follow(other, vectors[12:], spans[12:])
    assert speakers.state() == before


def test_the_state_is_bounded() -> None:
    vectors, spans, _ = made([(voice, 60) for voice in range(8)] * 2, noise=0.07)
    speakers = OnlineSpeakers()
    sizes = set()
    for vector, span in zip(vectors, spans, strict=True):
        speakers.take(vector, *span)
        sizes.add(len(speakers.state()))
    assert max(sizes) < 40_000
    assert len(speakers._spans) == KEPT


def test_other_bytes_are_refused() -> None:
    for state in (b"", b"x" * 10, OnlineSpeakers().state()[:-1]):
        with pytest.raises(ValueError, match="not the state of a stream's speakers"):
            OnlineSpeakers().restore(state)


def test_a_recording_is_divided_by_all_of_its_vectors() -> None:
    vectors, spans, owners = made([(3, 8), (1, 6), (3, 8), (5, 9), (1, 8)])
    names = {3: 0, 1: 1, 5: 2}
    labels = speakers_of_recording(vectors, spans)
    assert labels.tolist() == [names[owner] for owner in owners]
    assert [nearest(spans, *span) for span in spans] == list(range(len(spans)))


def test_the_number_of_speakers_of_a_recording_has_bounds() -> None:
    vectors, spans, _ = made([(0, 12), (1, 12), (2, 12)])
    assert len(set(speakers_of_recording(vectors, spans, maximum=2).tolist())) == 2
    similar = np.concatenate([vectors[:12], vectors[:12] + 0.6 * vectors[12:24]])
    similar /= np.linalg.norm(similar, axis=1, keepdims=True)
    assert len(set(speakers_of_recording(similar, spans[:24]).tolist())) == 1
    assert len(set(speakers_of_recording(similar, spans[:24], minimum=2).tolist())) == 2
    assert speakers_of_recording(vectors[:0], spans[:0]).tolist() == []
    assert speakers_of_recording(vectors[:1], spans[:1], minimum=2).tolist() == [0]


def test_a_recording_longer_than_a_block_has_the_same_speakers_throughout() -> None:
    turns = [(voice, 25) for voice in (0, 1, 2)] * 24
    vectors, spans, owners = made(turns)
    assert speakers_of_recording(vectors, spans).tolist() == owners


def test_similarity_is_the_cosine() -> None:
    vectors, _, _ = made([(0, 1), (1, 1)])
    assert similarity(vectors[0], vectors[0]) == pytest.approx(1, abs=1e-3)
    assert similarity(vectors[0], vectors[1]) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-3)
