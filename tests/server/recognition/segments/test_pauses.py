"""Silence by the level of the audio, and the places of forks."""

from __future__ import annotations

import numpy as np
import pytest

from model.recordings import read_pcm
from server.audio.pcm import PCM
from server.recognition.segments.pauses import LevelMeter, Pauses
from tests.support.audio.speech import samples
from tests.support.servers.recognizers.spelling import CONFIG

STEP = CONFIG.step_samples
STEP_S = STEP / CONFIG.sample_rate


def noise(seconds: float, level: float, seed: int = 0) -> PCM:
    return np.random.default_rng(seed).normal(0, level, round(seconds * CONFIG.sample_rate)).astype(np.int16)


def silences(audio: PCM) -> list[float]:
    """Silence at the end of each whole step."""
    meter = LevelMeter(CONFIG)
    return [meter.push(audio[at : at + STEP]) for at in range(0, len(audio) - STEP + 1, STEP)]


@pytest.mark.parametrize("room", [0.0, 5.0, 50.0])
@pytest.mark.parametrize("speech", [500.0, 8_000.0])
def test_silence_is_what_is_near_the_floor_of_the_room(room: float, speech: float) -> None:
    parts = [noise(0.8, room), noise(0.8, speech, 1), noise(1.6, room, 2), noise(0.8, speech, 3)]
    found = silences(np.concatenate(parts))
    assert found[9] == pytest.approx(0.8)
    assert found[10:20] == [0.0] * 10
    assert found[20:40] == pytest.approx(np.arange(1, 21) * STEP_S)
    assert found[40:] == [0.0] * 10


def test_silence_far_below_speech_needs_no_floor() -> None:
    """The first steps of a stream are speech, so the lowest level is not that of the room."""
    parts = [noise(0.8, 6_000.0), noise(0.8, 4.0, 1), noise(0.4, 9.0, 2)]
    assert silences(np.concatenate(parts))[-1] >= 0.8


def test_a_restored_meter_continues_as_if_it_had_heard_everything() -> None:
    audio = np.concatenate([noise(0.8, 5.0), noise(0.8, 8_000.0, 1), noise(3.2, 40.0, 2), noise(0.8, 500.0, 3)])
    whole = silences(audio)
    for cut in range(0, len(whole), 7):
        first, second = LevelMeter(CONFIG), LevelMeter(CONFIG)
        for at in range(cut):
            first.push(audio[at * STEP : (at + 1) * STEP])
        second.restore(first.saved())
        assert second.saved() == first.saved()
        found = [second.push(audio[at * STEP : (at + 1) * STEP]) for at in range(cut, len(whole))]
        assert found == whole[cut:]


def test_the_floor_is_the_lowest_level_of_the_last_three_seconds() -> None:
    """Audio of one level is silence by its own floor, but speech for 3 s after a floor that is lower by 9 dB."""
    parts = [noise(0.4, 6_000.0), noise(0.8, 300.0, 1), noise(4.8, 1_500.0, 2)]
    found = silences(np.concatenate(parts))
    rises = round(1.2 / STEP_S)
    speech = [number for number, silence_s in enumerate(found) if not silence_s and number >= rises]
    assert speech == list(range(rises, rises + int(3.0 / STEP_S)))


def test_a_click_does_not_end_silence() -> None:
    audio = noise(1.6, 5.0)
    audio[12_800:12_900] = 20_000 * np.where(np.arange(100) % 2, 1, -1)
    before = [noise(0.4, 5.0, 2), noise(0.8, 3_000.0, 1)]
    assert silences(np.concatenate([*before, audio]))[-1] == pytest.approx(1.6)


def test_the_end_of_speech_is_found_in_every_shipped_recording() -> None:
    for sample in samples():
        audio = read_pcm(sample.audio)
        quiet = audio[:3_200][np.argsort(np.abs(audio[:3_200]))][:640]  # the room of the recording
        found = silences(np.concatenate([audio, np.tile(quiet, 40)]))
        assert found[-1] >= 1.0, sample.audio


def places(silences_s: list[float], fork_after_s: float = 0.2) -> list[int]:
    pauses = Pauses(fork_after_s)
    return [number for number, silence_s in enumerate(silences_s) if pauses.forks(silence_s)]


def test_a_pause_has_one_fork_and_silence_before_any_speech_has_none() -> None:
    rising = [0.08, 0.16, 0.24, 0.32, 0.4]
    assert places(rising) == []
    assert places([0.0, *rising]) == [3]
    assert places([0.0, *rising, 0.0, *rising]) == [3, 9]
    assert places([0.0, 0.08, 0.16, 0.02, 0.1, 0.18, 0.26]) == [6], "speech inside of a step"
    assert places([0.0, 0.08, 0.16, 0.0, 0.08]) == []
