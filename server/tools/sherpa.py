"""What sherpa-onnx, where it is installed, recognises with the files of a published model, beside what we do."""

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
from model.published.timing import TAIL_FRAMES

FACTORIES = {
    "zipformer2-ctc": "from_zipformer2_ctc",
    "nemo-ctc": "from_nemo_ctc",
    "wenet-ctc": "from_wenet_ctc",
    "t-one-ctc": "from_t_one_ctc",
    "zipformer2-transducer": "from_transducer",
    "nemo-transducer": "from_transducer",
}
RAW_SILENCE_S = 0.66
"""Silence after the audio of a model that takes samples: as in sherpa-onnx's examples."""
UNWRITTEN = "<unk>"  # which sherpa-onnx leaves out of some models' tokens

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two lists of tokens differ; None where a list has ended."""

    place: int
    ours: str | None
    theirs: str | None


def sherpa_version() -> str | None:
    """Version of the installed sherpa-onnx."""
    try:
        return version("sherpa-onnx")
    except PackageNotFoundError:
        return None


def sherpa_tokens(model: PublishedModel, pcm: NDArray[np.int16]) -> list[str]:
    """Tokens that sherpa-onnx writes for samples (S,) int16, followed by silence; the text between words as a space.

    The silence makes it decode exactly the windows that a flush of ours does. See `model.published.timing`.
    """
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
    silence = round(RAW_SILENCE_S * config.sample_rate) if config.raw else (config.window + TAIL_FRAMES) * config.hop
    stream = engine.create_stream()
    samples = np.concatenate([pcm.astype(np.float32) / 32_768, np.zeros(silence, np.float32)])
    stream.accept_waveform(config.sample_rate, samples)
    stream.input_finished()
    while engine.is_ready(stream):
        engine.decode_stream(stream)
    return as_shown(engine.tokens(stream))


def as_shown(tokens: Sequence[str]) -> list[str]:
    """Tokens as both sides show them: `▁` as a space, printable bytes as letters, without those that one side drops."""
    return [_BYTE.sub(_letter, token).replace("▁", " ") for token in tokens if token != UNWRITTEN]


def _letter(byte: re.Match[str]) -> str:
    letter = chr(int(byte[1], 16))
    return letter if letter.isascii() and letter.isprintable() else byte[0]


def first_difference(ours: Sequence[str], theirs: Sequence[str]) -> Difference | None:
    """The first place at which they differ, None if they are equal."""
    for place, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            return Difference(place, one, other)
    return None
