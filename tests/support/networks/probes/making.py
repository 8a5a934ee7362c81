"""`make_probe`: writes a model of random weights in one of the published formats, and returns its properties."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from . import fastconformer, parakeet, t_one, transducers, zipformer
from .calibration import biases, open_session, run_windows, windows_of
from .graph import Graph, onnx
from .tokens import blank_of, symbols, write_tokens


def alone(write):
    """Turn a builder of one graph into a builder of graphs by role."""
    return lambda graphs, spec, vocabulary: {"model": write(graphs["model"], spec, vocabulary)}


TRANSDUCERS = ("zipformer2-transducer", "nemo-transducer", "nemo-buffered-transducer")
FORMATS = {
    "zipformer2-ctc": (zipformer.Zipformer, zipformer.SIZES, alone(zipformer.write_ctc)),
    "nemo-ctc": (fastconformer.FastConformer, fastconformer.SIZES, alone(fastconformer.write_ctc)),
    "t-one-ctc": (t_one.TOne, t_one.SIZES, alone(t_one.write_ctc)),
    "zipformer2-transducer": (zipformer.Zipformer, zipformer.SIZES, transducers.write_zipformer2),
    "nemo-transducer": (fastconformer.FastConformer, fastconformer.SIZES, transducers.write_nemo),
    "nemo-buffered-transducer": (parakeet.Parakeet, parakeet.SIZES, transducers.write_buffered),
}
KINDS = tuple(FORMATS)
FRAME_S = {"zipformer2-ctc": 0.04, "nemo-ctc": 0.08, "t-one-ctc": 0.03}
FRAME_S |= {"zipformer2-transducer": 0.04, "nemo-transducer": 0.08, "nemo-buffered-transducer": 0.08}
VOCABULARIES = {"small": 60, "22m": 500, "65m": 500, "26m": 1025, "109m": 1025, "600m": 1025}
STYLES = {"t-one-ctc": "characters"}
LEAST = {"bytes": 320}  # least vocabulary of styles that need more than a small one
CTC_BLANK_SHARE = 0.6


@dataclass(frozen=True)
class Probe:
    """A model folder: `files` by role, and properties that a loader must detect."""

    kind: str
    folder: Path
    files: dict[str, Path]
    tokens: Path
    vocabulary: int  # blank included
    blank: int
    window: int  # feature frames, for t-one samples
    shift: int
    frame_s: float  # of an output frame
    sample_rate: int
    feature: str  # "" or "whisper"
    states: tuple[tuple[str, str], ...]  # (input, output) of the model or encoder
    symbols: tuple[str, ...]

    @property
    def model(self):
        """The only file, or the encoder."""
        return self.files.get("model") or self.files["encoder"]


def make_probe(kind, folder, *, size="small", seed=0, **changes):
    """Write a probe of this kind to the folder, which is created.

    `size`: "small", or a published number of weights: "22m" and "65m" of zipformer2, "26m" and "109m" of NeMo, "600m"
    of buffered models.
    `changes`: the sizes that the kind's module lists (window, shift, state_dim, …), and `vocabulary` (blank included),
    `tokens` (a style of tokens.py), `space` ("line" or "|", of characters), `suffix` (of the file names, as
    "-epoch-99-avg-1-chunk-16-left-128"), `quantized` (products of bytes, in a file named int8), `data` (of the file for
    the weights of the model or encoder).
    """
    if kind not in FORMATS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    style = changes.pop("tokens", STYLES.get(kind, "bpe"))
    least = 35 if kind == "t-one-ctc" else VOCABULARIES.get(size, 0)
    vocabulary = changes.pop("vocabulary", max(least, LEAST.get(style, 0)))
    names = symbols(kind, style, vocabulary, seed, changes.pop("space", "line"))
    data = changes.pop("data", None)
    ending, quantized = changes.pop("suffix", ""), changes.pop("quantized", False)
    spec_type, sizes, write = FORMATS[kind]
    unknown = set(changes) - {field.name for field in fields(spec_type)}
    if unknown or size not in sizes:
        raise ValueError(f"{kind} has no setting {', '.join(unknown) or size}")
    spec = spec_type(**(sizes[size] | changes))
    roles = transducers.ROLES if kind in TRANSDUCERS else ("model",)
    graphs = {role: Graph(kind, [seed, place], quantized=quantized) for place, role in enumerate(roles)}
    models = {role: graphs[role].model(data) for role, data in write(graphs, spec, vocabulary).items()}
    states = tuple(graphs[roles[0]].states)
    calibrate(models, states, kind, spec, blank_of(names))
    files = save(models, Path(folder), ending + (".int8.onnx" if quantized else ".onnx"), data)
    write_tokens(Path(folder) / "tokens.txt", names)
    return Probe(
        kind=kind,
        folder=Path(folder),
        files=files,
        tokens=Path(folder) / "tokens.txt",
        vocabulary=vocabulary,
        blank=blank_of(names),
        window=spec.window,
        shift=spec.shift,
        frame_s=FRAME_S[kind],
        sample_rate=8000 if kind == "t-one-ctc" else 16000,
        feature=getattr(spec, "feature", ""),
        states=states,
        symbols=tuple(names),
    )


def save(models, folder, ending, data=None):
    """Write the model of each role to the folder, which is created; return their paths.

    `data`: name of a file for the weights of the first one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {role: folder / (role + ending) for role in models}
    for place, (role, path) in enumerate(files.items()):
        apart = {"save_as_external_data": True, "location": data} if data and not place else {}
        onnx.save(models[role], path, **apart)
    return files


def calibrate(models, states, kind, spec, blank):
    """Set the output biases of a model by calibration with a recording."""
    sessions = {role: open_session(model.SerializeToString()) for role, model in models.items()}
    context = 8 * spec.left if kind == "nemo-buffered-transducer" else 0
    normalized = getattr(spec, "normalize_type", "") == "per_feature"
    windows = windows_of(
        kind,
        spec.window,
        spec.shift,
        getattr(spec, "feature", ""),
        getattr(spec, "bins", 80),
        context=context,
        normalized=normalized,
    )
    role = next(iter(models))
    outputs = run_windows(sessions[role], states, windows)
    if context:
        outputs = [output[:, :, spec.left : spec.left + spec.chunk] for output in outputs]
    if kind not in TRANSDUCERS:
        set_constant(models[role], "bias", biases(np.concatenate(outputs, axis=1)[0], blank, CTC_BLANK_SHARE))
        return
    if kind.startswith("nemo"):
        outputs = [output.transpose(0, 2, 1) for output in outputs]
    frames = np.concatenate(outputs, axis=1)[0]  # (T, D)
    joiner = models["joiner"]
    if getattr(spec, "exported", False):
        history = transducers.histories(sessions["decoder"], blank, len(constant(joiner, "bias")), new=False)
        scores = transducers.scores(sessions["joiner"], frames, history)
        set_constant(joiner, "bias", biases(scores, blank, transducers.BLANK_SHARES[kind]))
        return
    beat = constant(joiner, "beat")
    spoken = frames[: len(frames) * 2 // 3] @ beat  # without the quiet end
    set_constant(joiner, "beat", beat * 8 / spoken.std())
    set_constant(joiner, "beat_bias", -np.median(spoken, axis=0) * 8 / spoken.std())
    history = transducers.histories(sessions["decoder"], blank, len(constant(joiner, "bias")))
    scores = transducers.scores(open_session(joiner.SerializeToString()), frames, history)
    set_constant(joiner, "bias", -scores.mean(0))
    scores = transducers.scores(open_session(joiner.SerializeToString()), frames, history)
    margin = np.delete(scores, blank, axis=1).max(1) - scores[:, blank]
    set_constant(joiner, "blank_bias", np.quantile(margin, transducers.BLANK_SHARES[kind], keepdims=True))


def tensor_of(model, name):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def constant(model, name):
    return onnx.numpy_helper.to_array(tensor_of(model, name))


def set_constant(model, name, value):
    tensor_of(model, name).CopyFrom(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
