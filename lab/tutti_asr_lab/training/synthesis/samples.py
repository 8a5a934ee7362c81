"""Generates the recordings shipped in ``model/samples``, which the demo, the tests and the load generator play.

Owns the assignment of held-out texts to voices. The commands are fixed, so the files are reproducible bit for bit.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from model.errors import ROOT
from tutti_asr_lab.training.synthesis.sentences import sample_texts
from tutti_asr_lab.training.synthesis.synthesize import LICENSES
from tutti_asr_lab.training.synthesis.voices import SAMPLE_RATE_HZ, FloatArray, Voice, require_engines, speak

SAMPLES_FOLDER = ROOT / "model" / "samples"
TELEPHONE_RATE_HZ = 8_000
# Enough silence for the end of speech to be detected before the file ends, and between two sentences.
_LEAD_S, _TRAIL_S, _PAUSE_S = 0.25, 0.5, 0.8
_PEAK = 0.35  # -9 dBFS, an ordinary speech level

_SLT = Voice("flite", "slt", pitch=175, pace=1.05)
_RMS = Voice("flite", "rms", pitch=100, pace=1.0)
_AWB = Voice("flite", "awb", pitch=125, pace=1.05)
_AMERICAN = Voice("espeak-ng", "en-us+m3", pitch=45, pace=150)
_AMERICAN_SLOW = Voice("espeak-ng", "en-us+m3", pitch=45, pace=130)
_AMERICAN_WOMAN = Voice("espeak-ng", "en-us+f3", pitch=50, pace=150)
_BRITISH = Voice("espeak-ng", "en-gb+f2", pitch=50, pace=150)
_BRITISH_MAN = Voice("espeak-ng", "en-gb+m1", pitch=45, pace=150)
_RECEIVED = Voice("espeak-ng", "en-gb-x-rp+m3", pitch=45, pace=150)


@dataclass(frozen=True, slots=True)
class Sample:
    """Shipped recording; several texts are spoken with pauses between them."""

    file: str
    voice: Voice
    texts: tuple[str, ...]
    rate_hz: int = SAMPLE_RATE_HZ


# For demonstration, these held-out sentences and voices were chosen such that the shipped model recognizes them without
# error, in bf16 and float32, at two levels. Error rates are in the model card.
SAMPLES: tuple[Sample, ...] = (
    Sample("account_number.flac", _AMERICAN_SLOW, ("my account number is four seven one nine two",)),
    Sample("order.flac", _SLT, ("where is my order",)),
    Sample("call_back.flac", _BRITISH, ("can you call me back on monday afternoon",)),
    Sample("hold_the_line.flac", _AMERICAN, ("please hold the line for twenty seconds",)),
    Sample("percent.flac", _AWB, ("what is twenty five percent of ninety one",)),
    Sample("garden_gate.flac", _BRITISH_MAN, ("show me the camera at the garden gate",)),
    Sample("number.flac", _RECEIVED, ("you can call me back on zero six two",)),
    Sample("porch_fan.flac", _RECEIVED, ("turn on the porch fan",)),
    Sample("name.flac", _AWB, ("my name is patrick",)),
    Sample("telephone_8khz.wav", _BRITISH_MAN, ("my account number is four seven one nine two",), TELEPHONE_RATE_HZ),
    Sample("yes.flac", _SLT, ("yes",)),
    Sample("no.flac", _RMS, ("no",)),
    Sample("stop.flac", _AWB, ("stop",)),
    Sample("seven.flac", _SLT, ("seven",)),
    Sample("cancel.flac", _AMERICAN_WOMAN, ("cancel",)),
    Sample(
        "demo.flac",
        _BRITISH,
        (
            "where is my order",
            "my account number is four seven one nine two",
            "you can call me back on zero six two",
        ),
    ),
)


_PINYIN = "cmn-latn-pinyin"

# Mandarin samples: the text in pinyin, for the synthesizer, and in characters.
MANDARIN_SAMPLES: tuple[tuple[Sample, str], ...] = (
    (
        Sample(
            "mandarin_weather.flac", Voice("espeak-ng", f"{_PINYIN}+f3", 45, 170), ("jin1 tian1 tian1 qi4 hen3 hao3",)
        ),
        "今天天气很好",
    ),
    (
        Sample("mandarin_china.flac", Voice("espeak-ng", f"{_PINYIN}+m3", 45, 170), ("ta1 shi4 zhong1 guo2 ren2",)),
        "他是中国人",
    ),
    (
        Sample("mandarin_beijing.flac", Voice("espeak-ng", f"{_PINYIN}+f2", 45, 170), ("wo3 men5 qu4 bei3 jing1",)),
        "我们去北京",
    ),
    (
        Sample("mandarin_digits.flac", Voice("espeak-ng", f"{_PINYIN}+m1", 45, 170), ("san1 qi1 jiu3 er4 ling2 wu3",)),
        "三七九二零五",
    ),
)


def make_samples(out: Path = SAMPLES_FOLDER) -> Path:
    """Write all samples into ``out``, with manifests ``samples.jsonl`` (English), ``mandarin.jsonl``, ``both.jsonl``.

    Returns the path of the English manifest.

    Raises:
        SynthesizerError: a synthesizer is missing or fails.
    """
    require_engines()
    out.mkdir(parents=True, exist_ok=True)
    for sample in SAMPLES:
        assert set(sample.texts) <= sample_texts(), sample  # otherwise the training data could contain the text
    manifest = out / "samples.jsonl"
    english = [_write(out, sample) for sample in SAMPLES]
    mandarin = [_write(out, sample) | {"text": text, "language": "zh"} for sample, text in MANDARIN_SAMPLES]
    _list(manifest, english)
    _list(out / "mandarin.jsonl", mandarin)
    _list(out / "both.jsonl", english + mandarin)
    return manifest


def _list(manifest: Path, rows: list[dict[str, str | float]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    manifest.write_text("".join(lines), encoding="utf-8")


def _write(out: Path, sample: Sample) -> dict[str, str | float]:
    audio = _render(sample)
    soundfile.write(out / sample.file, audio, sample.rate_hz, subtype="PCM_16")
    return {
        "audio": sample.file,
        "text": " ".join(sample.texts),
        "speaker": sample.voice.speaker,
        "source": "samples",
        "duration": round(len(audio) / sample.rate_hz, 3),
        "licence": LICENSES[sample.voice.engine],
        "origin": sample.voice.engine,
        "sample_rate_hz": sample.rate_hz,
    }


def _render(sample: Sample) -> FloatArray:
    """Recording of a sample, (S,) float32 at its rate."""
    parts: list[FloatArray] = [_silence(_LEAD_S)]
    for index, text in enumerate(sample.texts):
        parts += [_silence(_PAUSE_S)] if index else []
        parts.append(speak(sample.voice, text))
    audio = np.concatenate([*parts, _silence(_TRAIL_S)])  # [(S_i,)] -> (S,)
    audio *= _PEAK / np.abs(audio).max()
    return np.asarray(soxr.resample(audio, SAMPLE_RATE_HZ, sample.rate_hz), dtype=np.float32)


def _silence(seconds: float) -> FloatArray:
    return np.zeros(round(seconds * SAMPLE_RATE_HZ), dtype=np.float32)
