"""Tokens of sherpa-onnx, if it is installed, for the files of a published model, to compare with ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.published_model import PublishedModel
from model.published.timing import TAIL_FRAMES, PublishedDescription

FACTORIES = {
    "zipformer2-ctc": "from_zipformer2_ctc",
    "nemo-ctc": "from_nemo_ctc",
    "t-one-ctc": "from_t_one_ctc",
    "zipformer2-transducer": "from_transducer",
    "nemo-transducer": "from_transducer",
    "nemo-buffered-transducer": "from_transducer",
}
RAW_SILENCE_S = 0.66
"""Silence after the audio for models with raw samples as input. Source: sherpa-onnx's examples."""
UNFINISHED = 40
"""Samples of silence more for audio that is not finished: a frame is then decoded with its last sample, 280 after its
hop, and no longer once its center was there; and a buffered window with its last frame, not with the one after it."""
UNWRITTEN = "<unk>"  # omitted by sherpa-onnx for some models

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Difference:
    """First position at which two lists of tokens differ; None if a list has ended."""

    place: int
    ours: str | None
    theirs: str | None


def sherpa_version() -> str | None:
    """Return the version of the installed sherpa-onnx, None if it is not installed."""
    try:
        return version("sherpa-onnx")
    except PackageNotFoundError:
        return None


def sherpa_tokens(model: PublishedModel, pcm: NDArray[np.int16]) -> list[str]:
    """Return the tokens of sherpa-onnx for samples (S,) int16 followed by silence; word boundaries as spaces."""
    import sherpa_onnx

    config = model.config
    make = getattr(sherpa_onnx.OnlineRecognizer, FACTORIES[config.architecture])
    engine: Any = make(
        tokens=str(model.files.tokens),
        num_threads=1,
        decoding_method="greedy_search",
        enable_endpoint_detection=False,
        **{role: str(path) for role, path in model.files.graphs.items()},
    )
    stream = engine.create_stream()
    samples = np.concatenate([pcm.astype(np.float32) / 32_768, np.zeros(silence_of(config), np.float32)])
    stream.accept_waveform(config.sample_rate, samples)
    if not is_buffered(config):
        stream.input_finished()
    while engine.is_ready(stream):
        engine.decode_stream(stream)
    return as_shown(engine.tokens(stream))


def silence_of(config: PublishedDescription) -> int:
    """Return the samples of silence after which sherpa-onnx decodes the windows that a flush decodes here.

    See `model.published.timing`.
    """
    if config.raw:
        return round(RAW_SILENCE_S * config.sample_rate)
    return (config.window + TAIL_FRAMES) * config.hop + (UNFINISHED if is_buffered(config) else 0)


def is_buffered(config: PublishedDescription) -> bool:
    """Whether sherpa-onnx decodes the rest of finished audio with zeros instead of features; a flush decodes silence.

    So the audio must not be finished to have the same windows.
    """
    return config.architecture == "nemo-buffered-transducer"


def as_shown(tokens: Sequence[str]) -> list[str]:
    """Return tokens in a common form: `▁` as a space, printable bytes as letters, without `UNWRITTEN`."""
    return [_BYTE.sub(_letter, token).replace("▁", " ") for token in tokens if token != UNWRITTEN]


def _letter(byte: re.Match[str]) -> str:
    letter = chr(int(byte[1], 16))
    return letter if letter.isascii() and letter.isprintable() else byte[0]


def first_difference(ours: Sequence[str], theirs: Sequence[str]) -> Difference | None:
    """Return the first difference, None if the lists are equal."""
    for at, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            return Difference(at, one, other)
    return None
