"""Mixed conversations: the words, turns, voices and overlap that were asked for, in audio of their length."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from model.recordings import read_pcm
from tutti_asr_lab.training.speakers.conversations import RATE, mix, part_of, voices_of

DEMO = Path(__file__).parents[4] / "model" / "samples" / "demo.flac"


@pytest.fixture(scope="module")
def voices():
    pcm = read_pcm(DEMO)
    return [[pcm], [pcm[::-1].copy()]]


def mixed(voices, *, overlap=0.0, turns=6, band="wide"):
    return mix(voices, np.random.default_rng(5), turns=turns, overlap=overlap, band=band)


def overlaps(conversation):
    turns = conversation.turns
    return sum(a.speaker != b.speaker and b.start_s < a.end_s for a in turns for b in turns if a.start_s < b.start_s)


@pytest.mark.parametrize("band", ["wide", "mulaw"])
def test_every_voice_has_turns_and_words_inside_the_audio(voices, band):
    conversation = mixed(voices, band=band)
    assert {turn.speaker for turn in conversation.turns} == {word.speaker for word in conversation.words} == {0, 1}
    assert conversation.pcm.dtype == np.int16
    assert np.abs(conversation.pcm).max() > 1_000
    assert max(word.end_s for word in conversation.words) <= len(conversation.pcm) / RATE
    for word in conversation.words:
        assert 0 < word.end_s - word.start_s < 0.65
        assert any(
            turn.speaker == word.speaker and turn.start_s <= word.start_s + 1e-9 and word.end_s <= turn.end_s + 1e-9
            for turn in conversation.turns
        )


def test_turns_alternate_and_there_are_as_many_as_asked_for(voices):
    order = [word.speaker for word in mixed(voices).words]
    changes = sum(before != after for before, after in itertools.pairwise(order))
    assert changes == 5
    alone = mixed(voices[:1], turns=2)
    assert {word.speaker for word in alone.words} == {0}


def test_turns_overlap_only_if_asked_to(voices):
    assert overlaps(mixed(voices)) == 0
    assert overlaps(mixed(voices, overlap=1.0)) >= 3


def test_equal_seeds_mix_equal_conversations(voices):
    first, second = mixed(voices, overlap=0.5), mixed(voices, overlap=0.5)
    assert first.words == second.words
    np.testing.assert_array_equal(first.pcm, second.pcm)


def test_silence_is_no_voice():
    with pytest.raises(ValueError, match="second of voice"):
        mixed([[np.zeros(RATE // 2, np.int16)]])


def test_a_speaker_belongs_to_one_part_by_name():
    parts = {f"speaker {number}": part_of("commonvoice_en", f"speaker {number}") for number in range(300)}
    shares = {part: sum(own == part for own in parts.values()) / 300 for part in ("train", "tune", "report")}
    assert shares["train"] == pytest.approx(0.78, abs=0.08)
    assert min(shares.values()) > 0.04
    assert part_of("dev", "speaker 1") == "report"


def test_chosen_voices_are_of_different_speakers():
    recordings = {f"{number}": [np.full(4, number, np.int16)] for number in range(5)}
    chosen = voices_of(recordings, np.random.default_rng(1), 5)
    assert {int(pcm[0]) for (pcm,) in chosen} == set(range(5))
