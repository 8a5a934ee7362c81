"""The gate on words and starts of speech: what hums or hisses has none, at any level; speech has, however quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.attention_config import AttentionConfig
from model.config import ModelConfig
from model.ctc.words import Word
from model.recordings import read_pcm
from server.audio.pcm import PCM
from server.audio.raw import mulaw_table
from server.recognition.saved_state import SavedGate
from server.recognition.segments.speech_gate import SpeechGate
from tests.support.servers.recognizers import spelling

SAMPLES = Path(__file__).parents[4] / "model" / "samples"
CONFIG = ModelConfig()
RATE, STEP, SECONDS = CONFIG.sample_rate, CONFIG.step_samples, 30
SURE = 1.0  # the confidence of every word here: it counts for nothing
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


def words_passed(gate: SpeechGate, until_s: float, from_s: float = 0.0) -> tuple[Word, ...]:
    """Those of many words, of several lengths all over the audio, that pass."""
    words = [
        Word("and", start_s, start_s + length_s, SURE)
        for start_s in np.arange(from_s, until_s - 1.0, 0.2).tolist()
        for length_s in (0.04, 0.2, 0.8)
    ]
    return gate.speech(tuple(words))


@pytest.mark.parametrize("kind", ["zeros", "constant", "white", "pink", "tone 440", "tone 3000", "hum 50", "hum 60"])
@pytest.mark.parametrize("level_db", LEVELS_DB)
def test_no_word_passes_in_noise(kind: str, level_db: float) -> None:
    assert words_passed(gate_of(noise(kind, level_db)), SECONDS) == ()


def test_no_word_passes_in_mulaw_silence() -> None:
    silence = np.tile(mulaw_table()[[0xFF, 0x7F]], RATE * SECONDS // 2)
    assert words_passed(gate_of(silence), SECONDS) == ()


@pytest.mark.parametrize("kind", ["zeros", "white", "pink", "hum 50"])
def test_no_word_passes_in_noise_after_speech(kind: str) -> None:
    speech = read_pcm(SAMPLES / "porch_fan.flac")
    speech_s = len(speech) / RATE
    gate = gate_of(np.concatenate([speech, noise(kind, -50)]))
    assert words_passed(gate, speech_s + SECONDS, from_s=speech_s + 1.1) == ()


@pytest.mark.parametrize("gain_db", [0, -30])
@pytest.mark.parametrize("name", ["porch_fan", "garden_gate", "number"])
def test_words_passed_pass_in_speech_however_quiet(name: str, gain_db: float) -> None:
    speech = np.rint(read_pcm(SAMPLES / f"{name}.flac") * 10 ** (gain_db / 20)).astype(np.int16)
    seconds = len(speech) / RATE
    assert gate_of(speech).speech((Word("and", 0.3, seconds - 0.3, SURE),))


@pytest.mark.parametrize("kind", ["white", "pink", "hum 50"])
@pytest.mark.parametrize("name", ["porch_fan", "garden_gate", "number"])
def test_words_pass_in_speech_with_noise_half_as_loud(kind: str, name: str) -> None:
    speech = read_pcm(SAMPLES / f"{name}.flac").astype(np.float64)
    hiss = noise(kind, -40)[: len(speech)].astype(np.float64)
    mixed = speech + hiss * 0.5 * speech.std() / hiss.std()  # a ratio of 6 dB
    seconds = len(speech) / RATE
    assert gate_of(np.rint(mixed).astype(np.int16)).speech((Word("and", 0.3, seconds - 0.3, SURE),))


def test_every_word_passes_of_a_model_that_does_not_doubt_steady_audio() -> None:
    gate = SpeechGate(spelling.CONFIG)
    gate.sent(np.zeros(STEP, np.int16))
    gate.answered()
    words = (Word("yes", 1.0, 1.4, 0.1),)
    assert gate.speech(words) == words
    assert gate.frozen().has_speech(words[0])


def test_a_saved_gate_has_the_same_verdicts_and_restarts_with_the_decoder() -> None:
    gate, other = gate_of(read_pcm(SAMPLES / "porch_fan.flac")), SpeechGate(CONFIG)
    gate.taken(0.5, all_words=False)
    other.restore(gate.saved())
    assert words_passed(other, 3.0, 0.5) == words_passed(gate, 3.0, 0.5) != ()
    gate.restart()
    assert gate.saved() == SavedGate(0, b"", confident=True)


def test_words_count_from_the_first_of_which_the_network_is_sure() -> None:
    """Then they count until the segment ends, also if words are taken from it, or its state is saved."""
    config = AttentionConfig()
    step, audio = config.step_samples, read_pcm(SAMPLES / "porch_fan.flac")
    gate, again = SpeechGate(config), SpeechGate(config)
    for begin in range(0, len(audio) - step + 1, step):
        gate.sent(audio[begin : begin + step])
        gate.answered()
    doubtful, sure = Word("and", 0.5, 0.9, 0.24), Word("then", 1.0, 1.4, 0.25)
    assert gate.speech((doubtful,)) == ()
    assert gate.said(1) == 0
    assert gate.speech((doubtful, sure)) == (doubtful, sure)
    assert gate.said(2) == 2
    assert gate.speech((doubtful,)) == (doubtful,)
    gate.taken(0.9, all_words=False)
    again.restore(gate.saved())
    for one in (gate, again, gate.copy()):
        assert one.speech((doubtful,)) == (doubtful,)
        one.taken(1.4, all_words=True)
        assert one.speech((doubtful,)) == ()


def test_words_of_a_second_pass_are_judged_by_the_levels_of_their_time() -> None:
    gate = gate_of(read_pcm(SAMPLES / "porch_fan.flac"))
    frozen, passed = gate.frozen(), words_passed(gate, 3.0)
    gate.restart()
    assert passed
    assert all(frozen.has_speech(word) for word in passed)
