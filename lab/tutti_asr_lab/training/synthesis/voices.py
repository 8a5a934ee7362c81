"""Voices of the speech synthesizers, and the synthesis of one text.

Owns the commands of espeak-ng and flite (`kokoro.py` has the neural voices); knows nothing about corpora, levels or
output files.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from model.errors import SynthesizerError
from tutti_asr_lab.training.synthesis import kokoro

Engine = Literal["espeak-ng", "flite", "kokoro"]
FloatArray = npt.NDArray[np.float32]

# Sample rate of the corpus: wideband speech, as in flite's voices.
SAMPLE_RATE_HZ = 16_000
# An utterance takes about 30 ms; a synthesizer that takes longer than this hangs.
_TIMEOUT_S = 30.0
_FLITE_SHARE = 0.55

_ESPEAK_ACCENTS = (
    "en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc",
)  # fmt: skip
_ESPEAK_PINYIN = "cmn-latn-pinyin"  # espeak-ng has no dictionary of Chinese characters
# Without whispering, croaking, Klatt and "robo" variants, because callers do not sound like these.
_ESPEAK_VARIANTS = (
    *("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5"),
    *("Alex", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Hugo", "Jacky", "Lee"),
    *("Mario", "Michael", "Mike", "anika", "belinda", "linda", "john", "max", "paul", "quincy", "rob", "robert"),
    *("steph", "travis", "victor", "zac"),
)
# Range of mean pitch in hertz for each flite voice, about a fifth below and above its own; "rms" ignores it.
_FLITE_PITCH_HZ = {"kal16": (80, 140), "awb": (95, 160), "rms": (75, 125), "slt": (135, 215)}
# flite has only four voices, kokoro 28 for English and 8 for Mandarin. Resampling shifts formants and pitch together,
# like a longer or shorter vocal tract.
_FLITE_WARPS_PERCENT = (88, 92, 96, 100, 104, 108, 112)
_KOKORO_WARPS_PERCENT = (92, 96, 100, 104, 108)
# Speeds of kokoro's voices. Mandarin is fast already: five syllables a second at speed 1.
_KOKORO_PACES = {kokoro.ENGLISH: (0.8, 1.3), kokoro.MANDARIN: (0.7, 1.05)}


@dataclass(frozen=True, slots=True)
class Voice:
    """Voice of a synthesizer with its settings.

    ``pitch`` and ``pace`` are in the engine's units: espeak-ng: pitch 0-99, words per minute; flite: mean pitch in
    hertz, duration stretch; kokoro: no pitch (0), speed. ``warp_percent`` changes the apparent vocal tract length (100:
    unchanged), and with it pitch and pace.
    """

    engine: Engine
    name: str
    pitch: int
    pace: float
    warp_percent: int = 100

    @property
    def speaker(self) -> str:
        """Identity of the speaker, the same for every pitch and pace."""
        warp = "" if self.warp_percent == 100 else f"-w{self.warp_percent}"
        return f"{self.engine}-{self.name}{warp}"


def random_voice(rng: Random) -> Voice:
    """Draw an English voice of espeak-ng or flite."""
    if rng.random() < _FLITE_SHARE:
        name = rng.choice(tuple(_FLITE_PITCH_HZ))
        pitch, pace = rng.randint(*_FLITE_PITCH_HZ[name]), round(rng.uniform(0.85, 1.3), 2)
        return Voice("flite", name, pitch, pace, rng.choice(_FLITE_WARPS_PERCENT))
    name = f"{rng.choice(_ESPEAK_ACCENTS)}+{rng.choice(_ESPEAK_VARIANTS)}"
    return Voice("espeak-ng", name, rng.randint(25, 80), rng.randint(120, 200))


def random_mandarin_voice(rng: Random) -> Voice:
    """Draw a voice of espeak-ng that reads pinyin."""
    return random_espeak_voice(rng, _ESPEAK_PINYIN, (170, 290))


def random_neural_voice(rng: Random, language: str) -> Voice:
    """Draw a voice of kokoro, or a mixture of two. Raises: SynthesizerError if there are none."""
    warp = rng.choice(_KOKORO_WARPS_PERCENT)
    pace = round(rng.uniform(*_KOKORO_PACES[language]) * 100 / warp, 3)  # compensates the warp's change of pace
    return Voice("kokoro", kokoro.random_mixture(rng, language), 0, pace, warp)


def random_espeak_voice(rng: Random, language: str, words_a_minute: tuple[int, int] = (120, 200)) -> Voice:
    """Draw a voice of espeak-ng in a language, from all variants."""
    name = f"{language}+{rng.choice(_ESPEAK_VARIANTS)}"
    return Voice("espeak-ng", name, rng.randint(25, 80), rng.randint(*words_a_minute))


def require_engines() -> None:
    """Check that espeak-ng and flite are installed.

    Raises:
        SynthesizerError: one is missing; the message names the Debian package.
    """
    missing = [engine for engine in ("espeak-ng", "flite") if shutil.which(engine) is None]
    if missing:
        raise SynthesizerError(f"{' and '.join(missing)} not found; on Debian: apt-get install {' '.join(missing)}")


def speak(voice: Voice, text: str) -> FloatArray:
    """Speak a text, (S,) float32 at ``SAMPLE_RATE_HZ``.

    Raises:
        SynthesizerError: the synthesizer failed or its output is silent.
    """
    samples, rate_hz = _SPEAK[voice.engine](voice, text)
    if not samples.size or not np.any(samples):
        raise SynthesizerError(f"{voice.speaker}: silent output for {text!r}")
    resampled = soxr.resample(samples, rate_hz * voice.warp_percent / 100, SAMPLE_RATE_HZ)
    return np.asarray(resampled, dtype=np.float32)


def _speak_espeak(voice: Voice, text: str) -> tuple[FloatArray, int]:
    options = ["-v", voice.name, "-p", str(voice.pitch), "-s", str(round(voice.pace))]
    wav = _run(["espeak-ng", *options, "--stdout", text])
    # espeak-ng cannot fill in the lengths of the header when it writes to a pipe, so they are ignored.
    header_end = wav.find(b"data") + 8
    rate_hz = int.from_bytes(wav[24:28], "little")
    body = wav[header_end : len(wav) - (len(wav) - header_end) % 2]
    samples = np.frombuffer(body, dtype="<i2").astype(np.float32) / np.float32(32768)
    return samples, rate_hz


def _speak_flite(voice: Voice, text: str) -> tuple[FloatArray, int]:
    # The warp changes the pace too; stretching by the same factor compensates for this.
    stretch = voice.pace * voice.warp_percent / 100
    options = ["--setf", f"duration_stretch={stretch:.3f}", "--setf", f"int_f0_target_mean={voice.pitch}"]
    with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
        path = Path(folder) / "speech.wav"
        _run(["flite", "-voice", voice.name, *options, "-t", text, "-o", str(path)])
        samples, rate_hz = soundfile.read(path, dtype="float32")
    return np.asarray(samples, dtype=np.float32), rate_hz


def _run(command: list[str]) -> bytes:
    try:
        return subprocess.run(  # noqa: S603 - a fixed command; the text is a single argument
            command, capture_output=True, check=True, timeout=_TIMEOUT_S
        ).stdout
    except FileNotFoundError as error:
        raise SynthesizerError(f"{command[0]} not found; on Debian: apt-get install {command[0]}") from error
    except subprocess.SubprocessError as error:
        raise SynthesizerError(f"{' '.join(command)} failed: {error}") from error


def _speak_kokoro(voice: Voice, text: str) -> tuple[FloatArray, int]:
    return kokoro.speak(voice.name, text, voice.pace), kokoro.RATE_HZ


_SPEAK = {"espeak-ng": _speak_espeak, "flite": _speak_flite, "kokoro": _speak_kokoro}
