"""Ranges of the inputs of products over recordings, and the noise that 8-bit integers add to each product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.compiled.compiling import PublishedNetwork
from model.published.compiled.fastconformer.network import FastConformer
from model.published.compiled.linears import Linear
from model.published.contracts import Contract
from model.published.features import windows_of
from model.published.graphs.folding import fold_shapes
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.scales import Scale, digest_of_weights, quantized_weights
from tutti_asr_lab.training.published.layered import encode

STREAMS = 8  # recordings that are run in one batch
PERCENTILE = 99.99  # of inputs: rarer ones are clipped
VALUES = 256  # values of a product's input that are kept from each batch
ROWS = 2  # rows of a product's input that are kept from each batch, for the noise
MOST_ROWS = 256
SAMPLED = 8  # rows of a whole recording that are sampled as one batch is
TOO_SHORT = "the recordings are too short for a step of the model; give longer ones"
LEAST_SIZE = 32  # inputs and outputs: smaller products gain nothing

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Seen:
    """Samples of a product's inputs, on this axis: values, and whole rows (K,)."""

    axis: int
    values: list[Floats] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)

    def add(self, x: Floats, dice: np.random.Generator) -> None:
        """Add samples of inputs, drawn at random."""
        flat = np.moveaxis(x, self.axis, -1).reshape(-1, x.shape[self.axis])
        self.values.append(flat.reshape(-1)[dice.integers(0, flat.size, VALUES)])
        if len(self.rows) < MOST_ROWS:
            self.rows.extend(flat[dice.integers(0, len(flat), ROWS)])


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer of a network, the value of the graph that it reads, and the axis of that with the inputs."""

    linear: Linear
    source: str
    axis: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A product, the scale of its input, and its signal-to-noise ratio in 8-bit integers."""

    linear: Linear
    scale: Scale
    snr_db: float

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.linear.name


def products_of(graph: OnnxGraph, linears: Sequence[Linear]) -> list[Product]:
    """Return the layers that can be quantized: the products of a graph, and its convolutions with one tap."""
    by_weights = {digest_of_weights(linear.weight): linear for linear in linears}
    products = []
    for node in graph.nodes:
        weight = graph.constant(node.inputs[1]) if node.op in {"MatMul", "Conv"} else None
        if weight is None or (node.op == "Conv" and any(size != 1 for size in weight.shape[2:])):
            continue
        matrix = weight.reshape(weight.shape[:2]).T if node.op == "Conv" else weight
        linear = by_weights.get(digest_of_weights(matrix)) if matrix.ndim == 2 else None
        if linear is not None and min(linear.weight.shape) >= LEAST_SIZE:
            products.append(Product(linear, node.inputs[0], 1 if node.op == "Conv" else -1))
    return products


def calibrate(
    model: PublishedModel,
    network: PublishedNetwork,
    recordings: Sequence[NDArray[np.int16]],
    progress: Callable[[int], None],
) -> list[Calibrated]:
    """Run recordings through a model in floats and return its products.

    `network`: of the model. `progress` is called with the number of finished recordings. Raises: PublishedModelError if
    no recording has a complete window.
    """
    source = fold_shapes(network.source)
    products = products_of(source, network.compiled.linears)
    inputs = list(dict.fromkeys(product.source for product in products))
    graph = Graph.of(model.graph.path, source, inputs)
    seen = {product.source: Seen(product.axis) for product in products}
    dice = np.random.default_rng(1)
    longest_first = sorted(recordings, key=len, reverse=True)
    for first in range(0, len(longest_first), STREAMS):
        group = longest_first[first : first + STREAMS]
        for values in _run(model, graph, group, inputs):
            for name, x in values.items():
                seen[name].add(x, dice)
        progress(first + len(group))
    if not all(each.values for each in seen.values()):
        raise PublishedModelError(TOO_SHORT)
    return [calibrated(product.linear, seen[product.source]) for product in products]


def calibrate_layers(
    model: PublishedModel, network: FastConformer, recordings: Sequence[NDArray[np.int16]]
) -> tuple[list[Floats], list[Calibrated]]:
    """Run recordings layer by layer, so that no more than the weights of a layer are in use at a time.

    Returns: the frames (T, D) of each recording or, with an output layer, the log-probs (T, V); the products. Raises:
    PublishedModelError if no recording has a complete window.
    """
    seen, dice = {linear.name: Seen(-1) for linear in network.linears}, np.random.default_rng(1)
    if max(map(len, recordings)) < model.config.step_samples:
        raise PublishedModelError(TOO_SHORT)
    windows = [_windows(model, pcm) for pcm in recordings]

    def observe(name: str, x: Floats) -> None:
        for first in range(0, len(x), SAMPLED):
            seen[name].add(x[first : first + SAMPLED], dice)

    prompts = model.contract.prompts
    language = 0 if prompts is None else prompts.automatic
    results, head = encode(network.weights, windows, observe, language), network.weights.head
    if head is not None:
        for x in results:
            observe(head.name, x)
        symbols = network.weights.sizes.outputs
        results = [_log_softmax((x @ head.weight + head.bias)[:, :symbols]) for x in results]
    wide = [linear for linear in network.linears if min(linear.weight.shape) >= LEAST_SIZE]
    return results, [calibrated(linear, seen[linear.name]) for linear in wide]


def _log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float32)


def _windows(model: PublishedModel, pcm: NDArray[np.int16]) -> Floats:
    """Return the windows of a recording and its flush, (W, L, bins)."""
    config, slot = model.config, np.zeros(1, np.int64)
    streams = windows_of(config, model.contract.fbank, capacity=1)
    steps = np.zeros((config.steps_of(len(pcm)), config.step_samples), np.int16)
    steps.reshape(-1)[config.lead_samples :][: len(pcm)] = pcm
    return np.concatenate([streams.push(slot, step[np.newaxis])[1] for step in steps])


def _run(
    model: PublishedModel, graph: Graph, recordings: Sequence[NDArray[np.int16]], wanted: Sequence[str]
) -> Iterator[dict[str, Floats]]:
    """Yield the wanted values of each window of a batch of recordings, the longest of them first."""
    rows, contract, size = len(recordings), model.contract, model.config.step_samples
    windows = windows_of(model.config, contract.fbank, capacity=rows)
    states: list[NDArray[Any]] = [np.zeros(tensor.batched(rows), tensor.dtype) for tensor in contract.states]
    following = graph.outputs[1 + contract.ignored : 1 + contract.ignored + len(states)]
    pcm = np.zeros((rows, -(-len(recordings[0]) // size) * size), np.int16)
    for row, recording in enumerate(recordings):
        pcm[row, : len(recording)] = recording
    for start in range(0, pcm.shape[1], size):
        ready, window = windows.push(np.arange(rows), pcm[:, start : start + size])
        if len(ready) < rows:
            continue
        feeds = _feeds(graph, contract, window, states)
        results = dict(zip([*following, *wanted], graph.session.run([*following, *wanted], feeds), strict=True))
        states = [results[name] for name in following]
        yield {name: results[name] for name in wanted}


def _feeds(graph: Graph, contract: Contract, window: Any, states: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    remaining = iter(states)
    feeds: dict[str, NDArray[Any]] = {}
    for declared, feed in zip(graph.inputs, contract.feeds, strict=True):
        match feed:
            case "length":
                feeds[declared.name] = np.full(len(window), contract.window, np.int64)
            case "state":
                feeds[declared.name] = next(remaining)
            case "prompt":
                assert contract.prompts is not None
                feeds[declared.name] = np.full(len(window), contract.prompts.automatic, np.int64)
            case "bins first":
                feeds[declared.name] = np.ascontiguousarray(window.transpose(0, 2, 1))
            case _:
                feeds[declared.name] = window
    return feeds


def calibrated(linear: Linear, seen: Seen) -> Calibrated:
    """Return a product with the scale that its samples give."""
    values = np.concatenate(seen.values)
    low, high = np.percentile(values, [100 - PERCENTILE, PERCENTILE])
    scale = Scale.of(float(low), float(high))
    rows = np.stack(seen.rows)  # (R, K)
    weight, steps = quantized_weights(linear.weight)
    exact = rows @ linear.weight
    rounded = (scale.bytes_of(rows).astype(np.float32) - scale.zero) @ weight.astype(np.float32) * steps * scale.step
    noise = float(np.square(exact - rounded).sum())
    signal = float(np.square(exact).sum())
    return Calibrated(linear, scale, 10 * float(np.log10(max(signal, 1e-20) / max(noise, 1e-20))))
