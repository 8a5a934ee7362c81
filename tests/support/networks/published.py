"""Loaded probe models of every published kind, their results for recordings, and sherpa-onnx's results as words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

from model.acoustic import log_probs_of
from model.decoder import decoder_of
from model.published.published_model import PublishedModel
from model.published.transducer.greedy_search import GreedySearch
from server.tools.sherpa import FACTORIES, is_buffered, silence_of
from tests.support.needs import need_package
from tests.support.networks.compiled import SIZES
from tests.support.networks.folders import process_folder
from tests.support.networks.probes import KINDS, make_probe
from tests.support.networks.probes.tokens import TAGS

NEMOTRON = {"bins": 128, "data": "encoder.data", "layers": 6, "hidden": 64, "heads": 4, "left": 70, "kept": 8}
NEMOTRON |= {"tokens": "written", "vocabulary": 100}
"""Sizes of NeMo's transducers of 2026, but for fewer layers and narrower ones, and a smaller vocabulary."""
SEEDS = {8: 3, 16: 3, 56: 4, 112: 4}  # with many symbols, by shift
STEPS = {f"nemotron-{10 * shift}": {"window": shift + 9, "shift": shift, "seed": seed} for shift, seed in SEEDS.items()}
PROMPTED = NEMOTRON | {"left": 56, "prompts": 16}
VARIANTS = {
    "whisper": ("zipformer2-ctc", {"feature": "whisper"}),
    "zipformer-chunk-32": ("zipformer2-ctc", {"window": 77, "shift": 64, "tokens": "byte-bpe"}),
    "nemo-480": ("nemo-ctc", {"window": 65, "shift": 56, "tokens": "bytes"}),
    "nemo-1040": ("nemo-ctc", {"window": 121, "shift": 112, "tokens": "characters", "vocabulary": 30}),
    "one-symbol-context": ("zipformer2-transducer", {"context_size": 1, "tokens": "chinese"}),
    "two-lstm-layers": ("nemo-transducer", {"pred_rnn_layers": 2, "pred_hidden": 24}),
    **{name: ("nemo-transducer", NEMOTRON | steps) for name, steps in STEPS.items()},
    "nemotron-languages": ("nemo-transducer", PROMPTED | {"window": 41, "shift": 32, "seed": 3}),
    "nemo-exported": ("nemo-transducer", SIZES["nemo-transducer"]),
    "zipformer-exported": ("zipformer2-transducer", SIZES["zipformer2-transducer"]),
    "zipformer-chinese": ("zipformer2-ctc", {"tokens": "chinese"}),
    "buffered-1120": ("nemo-buffered-transducer", {"chunk": 7, "right": 7, "data": "encoder.weights"}),
    "buffered-unnormalized": ("nemo-buffered-transducer", {"normalize_type": "", "left": 14}),
}
VARIANTS |= {kind: (kind, {}) for kind in KINDS}
SLOW_VARIANTS = {"buffered-240": ("nemo-buffered-transducer", {"chunk": 1, "right": 2})}


PRINTABLE = re.compile(r"<0x([2-6][0-9A-F]|7[0-9A-E])>")


@cache
def probe_of(variant):
    """Return the probe of a variant, created once."""
    need_package("onnx")
    kind, changes = (VARIANTS | SLOW_VARIANTS)[variant]
    return make_probe(kind, process_folder(variant), **changes)


@cache
def model_of(variant):
    """Return the loaded model of a variant."""
    return PublishedModel.load(Path(probe_of(variant).folder), device="cpu")


def decoder_for(model):
    """Return the greedy decoder of a model."""
    return decoder_of(model.facts, decoder="greedy" if model.transducer is None else "auto")


def symbols_of(model, frames):
    """Return the symbols and their frames in outputs from the first window on."""
    if model.networks is not None:
        context, output = (part.copy() for part in model.networks.start)
        (searched,) = GreedySearch(model.networks).search(context, output, frames[np.newaxis])
        found = [(int(symbol), at) for at, frame in enumerate(searched.tolist()) for symbol, _ in frame if symbol >= 0]
    else:
        best = frames.argmax(axis=1).tolist()
        before = [model.tokens.blank, *best]
        found = [
            (symbol, at)
            for at, (symbol, last) in enumerate(zip(best, before, strict=False))
            if symbol not in {model.tokens.blank, last}
        ]
    return [symbol for symbol, _ in found], [at for _, at in found]


def recognize(model, recordings):
    """Return symbols and frames of each recording."""
    outputs = log_probs_of(model, recordings)
    return [symbols_of(model, frames[model.config.delay_frames :]) for frames in outputs]


def shown(model, symbols):
    """Return symbols as sherpa-onnx shows them: printable bytes and spaces as text, no `<unk>` and tags."""
    names = [model.tokens.symbols[symbol] for symbol in symbols]
    if model.transducer is not None:
        hidden = {"<unk>"} if model.contract.prompts is None else {"<unk>", *TAGS}
        names = [name for name in names if name not in hidden]
    if any("ā" in name or "ĺ" in name for name in model.tokens.symbols):  # byte-level BPE is shown unchanged
        return names
    names = [" " + name[1:] if name.startswith("▁") else name for name in names]
    return [chr(int(name[3:5], 16)) if PRINTABLE.fullmatch(name) else name for name in names]


@cache
def sherpa(variant):
    """Return sherpa-onnx's recognizer of a variant: one thread, greedy search, no endpoints."""
    probe = probe_of(variant)
    factory = getattr(need_package("sherpa_onnx").OnlineRecognizer, FACTORIES[probe.kind])
    files = {role: str(path) for role, path in probe.files.items()}
    options = {"num_threads": 1, "decoding_method": "greedy_search", "enable_endpoint_detection": False}
    return factory(tokens=str(probe.tokens), **options, **files)


def reference(variant, pcm, language=None, *, finished=False):
    """Return sherpa-onnx's symbols and their times in seconds of audio: it halves those of NeMo's CTC models.

    `finished`: of a buffered model, too, whose last windows then have zeros after the silence.
    """
    model, engine = model_of(variant), sherpa(variant)
    rate, stream = model.config.sample_rate, engine.create_stream()
    if language is not None:
        stream.set_option("language", language)
    silence = np.zeros(silence_of(model.config), np.float32)
    stream.accept_waveform(rate, np.concatenate([np.asarray(pcm, np.int16).astype(np.float32) / 32768, silence]))
    if finished or not is_buffered(model.config):
        stream.input_finished()
    while engine.is_ready(stream):
        engine.decode_stream(stream)
    factor = 2.0 if probe_of(variant).kind == "nemo-ctc" else 1.0
    return list(engine.tokens(stream)), [factor * at for at in engine.timestamps(stream)]


def padded(config, pcm):
    """Return the steps of a recording, (N, S), with its lead and the silence of its flush."""
    steps = np.zeros((config.steps_of(len(pcm)), config.step_samples), np.int16)
    steps.reshape(-1)[config.lead_samples :][: len(pcm)] = pcm
    return steps


def at_rate(model, pcm):
    """Resample a 16 kHz recording to the model's rate, approximately."""
    return pcm if model.config.sample_rate == 16_000 else np.ascontiguousarray(pcm[::2])
