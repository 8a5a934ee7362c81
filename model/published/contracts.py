"""Kinds of published graphs: their metadata, window and shift, states, and inputs by position.

Tensors are passed by position; names in the graph are ignored. Output 0 is the result; the next states follow in the
order of the states. Source: the loaders of sherpa-onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from model.errors import PublishedModelError
from model.prompts import Prompts
from model.published.filter_bank import KALDI, NEMO, WHISPER, Fbank
from model.published.graphs.metadata import Graph
from model.published.states import StateTensor

FLOAT, HALF, LONG = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int64)
TYPES = {FLOAT: "tensor(float)", HALF: "tensor(float16)", LONG: "tensor(int64)"}

Feed = Literal["window", "bins first", "length", "state", "prompt"]
"""Content of an input: the window (B, L, F), or (B, F, L); the window's length; the next state; the language."""

ENCODER_SUBSAMPLING = 4  # of all zipformers
BUFFERED = "nemo_parakeet_unified_streaming"
"""`streaming_model_type` of encoders without states, whose windows contain their context on the left."""
USUAL_BINS, FEWEST_BINS, MOST_BINS = 80, 40, 160  # of the features; the usual ones of graphs that state no number


@dataclass(frozen=True, slots=True)
class Contract:
    """Inputs, outputs and states of a graph. `window` and `shift` count feature frames.

    The first `left` frames of a window are context that a new stream does not have: zeros. `ignored` outputs follow the
    result. `kept`: first of the result's frames that belong to the shift, and their number; all of them if None.
    """

    kind: str
    window: int
    shift: int
    subsampling: int
    feeds: tuple[Feed, ...]
    states: tuple[StateTensor, ...]
    fbank: Fbank | None  # None: samples
    ignored: int = 0
    sample_rate: int = 16_000
    one_row: bool = False
    prompts: Prompts | None = None  # languages that a stream may choose
    left: int = 0
    kept: tuple[int, int] | None = None

    @property
    def recurrent(self) -> bool:
        """Whether this is the encoder of a NeMo transducer: a recurrent decoder, and frames (D, T) in the result."""
        return self.kind in {"nemo-transducer", "nemo-buffered-transducer"}

    @property
    def step_samples(self) -> int:
        """Number of samples of one step."""
        return self.shift * (self.sample_rate // 100)

    @property
    def window_shape(self) -> tuple[int, int]:
        """Shape of a window: (L, F), or (S, 1) for samples."""
        return (self.step_samples, 1) if self.fbank is None else (self.window, self.fbank.bins)


def zipformer2(graph: Graph, kind: str = "zipformer2-ctc") -> Contract:
    """Return the contract of a Zipformer 2, for CTC or as a transducer's encoder. Raises: PublishedModelError."""
    per_stack = KINDS["zipformer2-ctc"][0][:7]
    lists = [graph.numbers(key) for key in per_stack]
    if len(set(map(len, lists))) != 1:
        counts = ", ".join(f"{key} {len(numbers)}" for key, numbers in zip(per_stack, lists, strict=True))
        raise PublishedModelError(f"{graph.path.name}: numbers of stacks in the metadata differ: {counts}")
    states: list[StateTensor] = []
    for width, query, value, heads, layers, kernel, left in zip(*lists, strict=True):
        layer = [
            StateTensor((left, query * heads), FLOAT, axis=1),
            StateTensor((1, left, 3 * width // 4), FLOAT, axis=1),
            StateTensor((left, value * heads), FLOAT, axis=1),
            StateTensor((left, value * heads), FLOAT, axis=1),
            StateTensor((width, kernel // 2), FLOAT),
            StateTensor((width, kernel // 2), FLOAT),
        ]
        states += layer * layers
    bins = bins_of(graph, axis=2)
    states += [StateTensor((128, 3, ((bins - 1) // 2 - 1) // 2), FLOAT), StateTensor((), LONG)]
    window, shift = graph.number("T"), graph.number("decode_chunk_len")
    feature = graph.metadata.get("feature", "")
    if feature not in {"", "whisper", "fbank"}:
        raise PublishedModelError(f"{graph.path.name}: features of kind {feature!r} are not supported")
    _check_window(graph, window, shift)
    return Contract(
        kind=kind,
        window=window,
        shift=shift,
        subsampling=ENCODER_SUBSAMPLING,
        feeds=("window", *cast(list[Feed], ["state"] * len(states))),
        states=tuple(states),
        fbank=replace(WHISPER if feature == "whisper" else KALDI, bins=bins),
    )


def nemo(graph: Graph, kind: str = "nemo-ctc") -> Contract:
    """Return the contract of a cache-aware FastConformer, for CTC or a transducer. Raises: PublishedModelError."""
    if (normalize := graph.metadata.get("normalize_type", "")) not in {"", "NA"}:
        raise PublishedModelError(
            f"{graph.path.name}: features normalized by {normalize!r} need the whole utterance and cannot be streamed"
        )
    prompts = _prompts(graph) if any(declared.name == "prompt_index" for declared in graph.inputs) else None
    channel = tuple(graph.number(f"cache_last_channel_dim{number}") for number in (1, 2, 3))
    time = tuple(graph.number(f"cache_last_time_dim{number}") for number in (1, 2, 3))
    window, shift = graph.number("window_size"), graph.number("chunk_shift")
    _check_window(graph, window, shift)
    return Contract(
        kind=kind,
        window=window,
        shift=shift,
        subsampling=graph.number("subsampling_factor"),
        feeds=("bins first", "length", "state", "state", "state", *(("prompt",) if prompts else ())),
        states=(StateTensor(channel, FLOAT), StateTensor(time, FLOAT), StateTensor((), LONG)),
        fbank=replace(NEMO, bins=bins_of(graph, axis=1)),
        ignored=1,  # the length of the result
        prompts=prompts,
    )


def _prompts(graph: Graph) -> Prompts:
    """Raises: PublishedModelError."""
    dictionary = graph.metadata.get("prompt_dictionary")
    if dictionary is None:
        raise PublishedModelError(f"{graph.path.name} has no 'prompt_dictionary' in its metadata")
    try:
        return Prompts.read(dictionary, graph.metadata.get("auto_prompt_id"))
    except ValueError as error:
        raise PublishedModelError(f"{graph.path.name}: 'prompt_dictionary' in the metadata: {error}") from error


def nemo_buffered(graph: Graph) -> Contract:
    """Return the contract of an encoder without states: context, shift and context again in each window.

    Raises: PublishedModelError.
    """
    name = graph.path.name
    if (kind := graph.metadata["streaming_model_type"]) != BUFFERED:
        raise PublishedModelError(f"{name}: streaming models of type {kind!r} are not supported, only {BUFFERED!r}")
    if (normalize := graph.metadata.get("normalize_type", "")) not in {"", "NA", "per_feature"}:
        raise PublishedModelError(f"{name}: features normalized by {normalize!r} are not supported, only 'per_feature'")
    subsampling = graph.number("subsampling_factor")
    least = {"left": 0, "chunk": 1, "right": 0}
    encoded = {part: graph.number(f"{part}_encoder_frames", least=few) for part, few in least.items()}
    frames = {part: graph.number(f"{part}_feature_frames", least=few) for part, few in least.items()}
    for part, count in frames.items():
        if count != subsampling * encoded[part]:
            raise PublishedModelError(
                f"{name}: '{part}_feature_frames' in the metadata is {count}, but '{part}_encoder_frames' times "
                f"'subsampling_factor' is {subsampling * encoded[part]}"
            )
    return Contract(
        kind="nemo-buffered-transducer",
        window=sum(frames.values()),
        shift=frames["chunk"],
        subsampling=subsampling,
        feeds=("bins first", "length"),
        states=(),
        fbank=replace(NEMO, bins=bins_of(graph, axis=1), normalized=normalize == "per_feature"),
        ignored=1,  # the length of the result
        left=frames["left"],
        kept=(encoded["left"], encoded["chunk"]),
    )


def t_one(graph: Graph) -> Contract:
    """Return the contract of T-one: 8 kHz, frames of 300 ms, one state in fp16. Raises: PublishedModelError."""
    rate, length_ms = graph.number("sample_rate"), graph.number("frame_length_ms")
    if rate != 8_000 or length_ms % 10:
        raise PublishedModelError(f"{graph.path.name}: frames of {length_ms} ms at {rate} Hz are not supported")
    return Contract(
        kind="t-one-ctc",
        window=length_ms // 10,
        shift=length_ms // 10,
        subsampling=1,
        feeds=("window", "state"),
        states=(StateTensor((graph.number("state_dim"),), HALF),),
        fbank=None,
        sample_rate=rate,
    )


KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Graph], Contract]]] = {
    "zipformer2-ctc": (
        (
            *("encoder_dims", "query_head_dims", "value_head_dims", "num_heads", "num_encoder_layers"),
            *("cnn_module_kernels", "left_context_len", "T", "decode_chunk_len"),
        ),
        zipformer2,
    ),
    "nemo-ctc": (
        (
            *("window_size", "chunk_shift", "subsampling_factor", "vocab_size"),
            *(f"cache_last_{part}_dim{number}" for part in ("channel", "time") for number in (1, 2, 3)),
        ),
        nemo,
    ),
    "t-one-ctc": (("sample_rate", "frame_length_ms", "state_dim"), t_one),
}
"""For each kind the metadata keys by which it is detected, and the function that reads it."""


WENET_KEYS = {"head", "num_blocks", "cnn_module_kernel", "right_context"}
NO_WENET = (
    "models of WeNet are not served, because their graphs take one stream at a time; serve a model of another kind "
    "(`tutti model fetch --list`)"
)


def recognize(graph: Graph) -> str:
    """Return the kind of a graph: the one of which it has most metadata keys. Raises: PublishedModelError for none."""
    if graph.metadata.keys() >= WENET_KEYS:
        raise PublishedModelError(f"{graph.path.name}: {NO_WENET}")

    def share(kind: str) -> float:
        keys = KINDS[kind][0]
        return sum(key in graph.metadata for key in keys) / len(keys)

    best = max(KINDS, key=share)
    if share(best) <= 0.5:
        raise PublishedModelError(
            f"{graph.path.name} is not of a supported kind ({', '.join(KINDS)}, and transducers of zipformer2 and "
            "NeMo): its metadata has " + (", ".join(sorted(graph.metadata)[:8]) or "no keys")
        )
    return best


def bins_of(graph: Graph, *, axis: int) -> int:
    """Return the number of mel bins: `feat_dim` of the metadata, else the size of an axis of the first input.

    Raises: PublishedModelError if it is not supported.
    """
    shape = graph.inputs[0].shape if graph.inputs else ()
    stated = shape[axis] if axis < len(shape) else None
    bins = graph.number("feat_dim") if "feat_dim" in graph.metadata else stated
    if not isinstance(bins, int) or bins <= 0:
        return USUAL_BINS
    if not FEWEST_BINS <= bins <= MOST_BINS:
        raise PublishedModelError(
            f"{graph.path.name} takes features of {bins} mel bins; {FEWEST_BINS} to {MOST_BINS} are supported"
        )
    return bins


def expected_inputs(contract: Contract) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return type and shape of each input, by position; None is the batch axis."""
    states = iter(contract.states)
    inputs: list[tuple[str, tuple[int | None, ...]]] = []
    batch = 1 if contract.one_row else None
    window = "tensor(int32)" if contract.fbank is None else "tensor(float)"
    shape = contract.window_shape
    for feed in contract.feeds:
        match feed:
            case "window":
                inputs.append((window, (batch, *shape)))
            case "bins first":
                inputs.append((window, (batch, *reversed(shape))))
            case "length" | "prompt":
                inputs.append(("tensor(int64)", (batch,)))
            case "state":
                state = next(states)
                inputs.append((TYPES[state.dtype], (*state.shape[: state.axis], None, *state.shape[state.axis :])))
    return inputs


def for_batches_of(graph: Graph, contract: Contract) -> Contract:
    """Return the contract, with one row at a time if the graph's batch axis is fixed at 1.

    Raises: PublishedModelError if it is fixed at another size.
    """
    fixed = {
        size
        for declared, (_, shape) in zip(graph.inputs, expected_inputs(contract), strict=False)
        if len(declared.shape) == len(shape)
        for size, wanted in zip(declared.shape, shape, strict=True)
        if wanted is None and isinstance(size, int) and size > 0
    }
    if not fixed:
        return contract
    if fixed != {1}:
        sizes = ", ".join(map(str, sorted(fixed)))
        raise PublishedModelError(
            f"{graph.path.name}: its batch axis is fixed at {sizes}; export it with a dynamic batch axis (or size 1)"
        )
    return replace(contract, one_row=True)


def check_batches(graph: Graph) -> None:
    """Check that a decoder or joiner accepts batches. Raises: PublishedModelError."""
    for declared in graph.inputs:
        if declared.shape and isinstance(declared.shape[0], int) and declared.shape[0] > 0:
            raise PublishedModelError(
                f"{graph.path.name}: the batch axis of its input {declared.name!r} is fixed at {declared.shape[0]}; "
                "export it with a dynamic batch axis"
            )


def _check_window(graph: Graph, window: int, shift: int) -> None:
    if window < shift:
        raise PublishedModelError(f"{graph.path.name}: the window ({window} frames) is below the shift ({shift})")
