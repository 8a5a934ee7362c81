"""Silero's stops of speech as pipecat's detector reports them."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.rulers.playing import PIECE_S
from loadtest.rulers.voice import STOP_S, Voice, _Loudness
from tests.support.audio.speech import samples
from tutti_asr_client.files.audio import read_pcm

RATE = 16_000


@pytest.fixture(scope="module")
def voice() -> Voice:
    return Voice()


def recording(name: str, silence_s: float = 2.0) -> np.ndarray:
    (path,) = (utterance.audio for utterance in samples() if utterance.audio.stem == name)
    return np.concatenate([read_pcm(path, RATE), np.zeros(round(silence_s * RATE), np.int16)]).astype(np.int16)


def test_speech_stops_after_a_fifth_of_a_second_of_silence(voice: Voice) -> None:
    spoken = recording("order")
    (stop,), end_s = voice.stops(spoken), voice.end_s(spoken)
    assert end_s is not None
    assert (stop + 1) * PIECE_S - end_s == pytest.approx(STOP_S, abs=0.1)  # the thresholds differ


def test_each_pause_is_a_stop(voice: Voice) -> None:
    pause = recording("order", 1.0)
    assert len(voice.stops(np.concatenate([pause, recording("porch_fan")]))) == 2


def test_silence_and_faint_speech_have_no_stop(voice: Voice) -> None:
    assert voice.stops(np.zeros(3 * RATE, np.int16)) == ()
    assert voice.stops((recording("order") / 2_000).astype(np.int16)) == ()


def test_the_loudness_of_a_full_scale_sine_is_that_of_the_standard() -> None:
    """Source: ITU-R BS.1770-4: a sine of 997 Hz at full scale reads -3.01 LKFS."""
    sine = 32_767 * np.sin(2 * np.pi * 997 * np.arange(RATE) / RATE)
    volume = _Loudness(sine.astype(np.int16), RATE).volume(RATE)
    assert volume == 1.0  # above the loudest value of the scale
    quiet = _Loudness((sine / 10**2.5).astype(np.int16), RATE).volume(RATE)  # 50 dB less
    assert quiet * 100 - 110 == pytest.approx(-53.01, abs=0.1)
