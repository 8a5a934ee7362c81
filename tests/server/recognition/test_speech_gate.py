"""The gate on words and starts of speech: what hums or hisses has none, at any level; speech has, however quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from spelling import CONFIG

from model.ctc.words import Word
from model.recordings import read_pcm
from server.audio.pcm import PCM
from server.audio.raw import mulaw_table
from server.recognition.speech_gate import SURE, SpeechGate

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
RATE, STEP, SECONDS = CONFIG.sample_rate, CONFIG.step_samples, 30
DOUBTFUL = SURE / 2
LEVELS_DB = (-70, -60, -50, -45, -40)


def noise(kind: str, level_db: float) -> PCM:
    """Half a minute of one kind of noise at this level."""
    count = RATE * SECONDS
    times = np.arange(count) / RATE
    white = np.random.default_rng(5).standard_normal(count)
    if kind == "pink":
        spectrum = np.fft.rfft(white)
        white = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), count)
    shapes = {
        "zeros": lambda: np.zeros(count),
        "constant": lambda: np.ones(count),
        "white": lambda: white,
        "pink": lambda: white / white.std(),
        "tone 440": lambda: np.sin(2 * np.pi * 440 * times),
        "tone 3000": lambda: np.sin(2 * np.pi * 3_000 * times),
        "hum 50": lambda: sum(np.sin(2 * np.pi * 50 * n * times + n) / n for n in range(1, 9)),
        "hum 60": lambda: sum(np.sin(2 * np.pi * 60 * n * times + n) / n for n in range(1, 9)),
    }
    return np.clip(np.rint(shapes[kind]() * 32_768 * 10 ** (level_db / 20)), -32_768, 32_767).astype(np.int16)


def gate_of(audio: PCM) -> SpeechGate:
    gate = SpeechGate(CONFIG)
    for begin in range(0, len(audio) - STEP + 1, STEP):
        gate.sent(audio[begin : begin + STEP])
        gate.answered()
    return gate


def doubtful_words(gate: SpeechGate, until_s: float, from_s: float = 0.0) -> tuple[Word, ...]:
    """Those of many doubtful words, of several lengths all over the audio, that pass."""
    words = [
        Word("and", start_s, start_s + length_s, DOUBTFUL)
        for start_s in np.arange(from_s, until_s - 1.0, 0.2).tolist()
        for length_s in (0.04, 0.2, 0.8)
    ]
    return gate.speech(tuple(words))


@pytest.mark.parametrize("kind", ["zeros", "constant", "white", "pink", "tone 440", "tone 3000", "hum 50", "hum 60"])
@pytest.mark.parametrize("level_db", LEVELS_DB)
def test_no_doubtful_word_passes_in_noise(kind: str, level_db: float) -> None:
    assert doubtful_words(gate_of(noise(kind, level_db)), SECONDS) == ()


def test_no_doubtful_word_passes_in_mulaw_silence() -> None:
    silence = np.tile(mulaw_table()[[0xFF, 0x7F]], RATE * SECONDS // 2)
    assert doubtful_words(gate_of(silence), SECONDS) == ()


@pytest.mark.parametrize("kind", ["zeros", "white", "pink", "hum 50"])
def test_no_doubtful_word_passes_in_noise_after_speech(kind: str) -> None:
    speech = read_pcm(SAMPLES / "porch_fan.flac")
    speech_s = len(speech) / RATE
    gate = gate_of(np.concatenate([speech, noise(kind, -50)]))
    assert doubtful_words(gate, speech_s + SECONDS, from_s=speech_s + 1.1) == ()


@pytest.mark.parametrize("gain_db", [0, -30])
@pytest.mark.parametrize("name", ["porch_fan", "garden_gate", "number"])
def test_doubtful_words_pass_in_speech_however_quiet(name: str, gain_db: float) -> None:
    speech = np.rint(read_pcm(SAMPLES / f"{name}.flac") * 10 ** (gain_db / 20)).astype(np.int16)
    seconds = len(speech) / RATE
    assert gate_of(speech).speech((Word("and", 0.3, seconds - 0.3, DOUBTFUL),))


def test_a_sure_word_passes_whatever_the_level() -> None:
    word = Word("yes", 1.0, 1.4, SURE)
    assert gate_of(noise("zeros", 0)).speech((word,)) == (word,)


def test_a_saved_gate_has_the_same_verdicts_and_restarts_with_the_decoder() -> None:
    gate, other = gate_of(read_pcm(SAMPLES / "porch_fan.flac")), SpeechGate(CONFIG)
    gate.taken(0.5)
    other.restore(*gate.saved())
    assert doubtful_words(other, 3.0, 0.5) == doubtful_words(gate, 3.0, 0.5) != ()
    gate.restart()
    assert gate.saved() == (0, b"")


def test_words_of_a_second_pass_are_judged_by_the_levels_of_their_time() -> None:
    gate = gate_of(read_pcm(SAMPLES / "porch_fan.flac"))
    frozen, passed = gate.frozen(), doubtful_words(gate, 3.0)
    gate.restart()
    assert passed
    assert all(frozen.has_speech(word) for word in passed)
