"""The digest of a stream's audio at the end of each step, however the audio was divided and wherever it was cut."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.recognition.audio_digest import BLOCK, AudioDigest, AudioMark, digest_of

RATE, STEP = 8_000, 640
DICE = np.random.default_rng(3)
AUDIO = DICE.integers(-9_000, 9_000, (3 * BLOCK + 777, 2), dtype=np.int16)


def step(digest: AudioDigest, end: int, channel: int = 0) -> AudioMark:
    digest.answered(channel, end / RATE)
    return digest.mark(end / RATE)


def test_the_definition_is_a_chain_over_blocks() -> None:
    audio = AUDIO[: BLOCK + 5].tobytes()
    first = hashlib.sha256(audio[: BLOCK * 4]).digest()
    assert digest_of(audio, 2) == hashlib.sha256(first + audio[BLOCK * 4 :]).digest()
    assert digest_of(audio[: BLOCK * 4], 2) == first
    assert digest_of(b"") == hashlib.sha256(b"").digest()


@given(cuts=st.lists(st.integers(0, len(AUDIO)), max_size=12), late=st.integers(0, 30))
def test_marks_are_those_of_the_definition_for_any_messages_and_any_delay(cuts: list[int], late: int) -> None:
    digest, sent, answered = AudioDigest(2, 1, RATE), 0, []
    ends = list(range(STEP, len(AUDIO) + 1, STEP))
    received = 0
    for until in [*sorted(cuts), len(AUDIO)]:
        digest.receive(AUDIO[received:until])
        received = until
        sent = sum(end <= received for end in ends)
        while len(answered) < sent - late:
            answered.append(step(digest, ends[len(answered)]))
    while len(answered) < len(ends):
        answered.append(step(digest, ends[len(answered)]))
    assert [mark.end for mark in answered] == ends
    assert [mark.digest for mark in answered] == [digest_of(AUDIO[:end].tobytes(), 2) for end in ends]
    assert digest.mark() == (0, len(AUDIO), digest_of(AUDIO.tobytes(), 2))


def test_a_channel_that_is_answered_late_keeps_the_marks_of_its_steps() -> None:
    digest = AudioDigest(2, 2, RATE)
    digest.receive(AUDIO)
    ends = list(range(STEP, len(AUDIO), STEP))
    for channel in (0, 1):
        found = [step(digest, end, channel).digest for end in ends]
        assert found == [digest_of(AUDIO[:end].tobytes(), 2) for end in ends]


@pytest.mark.parametrize("at", [1, STEP, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 900])
def test_a_saved_digest_goes_on_from_the_start_of_its_block(at: int) -> None:
    first = AudioDigest(2, 1, RATE)
    first.receive(AUDIO[: at + 100])
    saved = first.saved(at)
    assert saved.end == at // BLOCK * BLOCK
    second = AudioDigest(2, 1, RATE)
    begin = max(0, saved.end - 60)  # as far back as a resampler needs
    second.restore(saved, begin)
    second.receive(AUDIO[begin : begin + 30])
    second.receive(AUDIO[begin + 30 :])
    assert second.mark() == (0, len(AUDIO), digest_of(AUDIO.tobytes(), 2))
    assert step(first, at).digest == digest_of(AUDIO[:at].tobytes(), 2), "saving changes nothing"


def test_a_stream_that_begins_later_has_a_digest_of_its_own() -> None:
    digest = AudioDigest(2, 1, RATE)
    digest.start_at(5_000)
    digest.receive(AUDIO)
    assert step(digest, 5_000 + STEP) == (5_000, 5_000 + STEP, digest_of(AUDIO[:STEP].tobytes(), 2))


def test_memory_is_bounded_by_the_open_steps() -> None:
    digest = AudioDigest(1, 1, RATE)
    for second in range(60):
        digest.receive(AUDIO[:RATE, :1])
        digest.answered(0, second + 1)
        assert len(digest._audio(10**9)) < 2 * 2 * BLOCK
