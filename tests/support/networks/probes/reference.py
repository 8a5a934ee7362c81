"""Results of sherpa-onnx with a probe: the reference for all loader tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from server.tools.sherpa import FACTORIES
from tests.support.needs import need_package


@dataclass(frozen=True)
class Recognized:
    """Symbols, their times in seconds as counted by sherpa-onnx, and the text."""

    tokens: list[str]
    timestamps: list[float]
    text: str


def recognizer(probe):
    """Return sherpa-onnx's recognizer for a probe: one thread, greedy search, no endpoints."""
    sherpa_onnx = need_package("sherpa_onnx")
    factory = getattr(sherpa_onnx.OnlineRecognizer, FACTORIES[probe.kind])
    files = {role: str(path) for role, path in probe.files.items()}
    return factory(
        tokens=str(probe.tokens),
        num_threads=1,
        decoding_method="greedy_search",
        enable_endpoint_detection=False,
        **files,
    )


def reference_tokens(probe, pcm, sample_rate, *, pieces=None, tail_s=0.66, engine=None):
    """Decode samples (S,) int16, whole or in pieces of this many samples, followed by `tail_s` of zeros."""
    engine = engine or recognizer(probe)
    stream = engine.create_stream()
    samples = np.asarray(pcm, np.int16).astype(np.float32) / 32768
    samples = np.concatenate([samples, np.zeros(int(tail_s * sample_rate), np.float32)])
    step = pieces or len(samples)
    for start in range(0, len(samples), step):
        stream.accept_waveform(sample_rate, samples[start : start + step])
        while engine.is_ready(stream):
            engine.decode_stream(stream)
    stream.input_finished()
    while engine.is_ready(stream):
        engine.decode_stream(stream)
    return Recognized(engine.tokens(stream), engine.timestamps(stream), engine.get_result(stream))
