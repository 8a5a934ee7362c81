"""Ranges of the inputs of products over recordings, and the noise that 8-bit integers add to each product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.contracts import Contract
from model.published.features import windows_of
from model.published.metadata import Graph
from model.published.onnx_graph import OnnxGraph
from model.published.products import Product, Scale, products_of, quantized_weights
from model.published.published_model import PublishedModel

STREAMS = 8  # recordings that are run in one batch
PERCENTILE = 99.99  # of inputs: rarer ones are clipped
VALUES = 256  # values of a product's input that are kept from each batch
ROWS = 2  # rows of a product's input that are kept from each batch, for the noise
MOST_ROWS = 256

Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Seen:
    """Samples of a product's inputs: values, and whole rows (K,)."""

    values: list[Floats] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)

    def add(self, x: Floats, dice: np.random.Generator) -> None:
        flat = x.reshape(-1, x.shape[-1])
        self.values.append(flat.reshape(-1)[dice.integers(0, flat.size, VALUES)])
        if len(self.rows) < MOST_ROWS:
            self.rows.extend(flat[dice.integers(0, len(flat), ROWS)])


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A product, the scale of its input, and its signal-to-noise ratio in 8-bit integers."""

    name: str
    scale: Scale
    snr_db: float


def calibrate(
    model: PublishedModel,
    source: OnnxGraph,
    recordings: Sequence[NDArray[np.int16]],
    progress: Callable[[int], None],
) -> list[Calibrated]:
    """Run recordings through a model in floats and return its products, the noisiest first.

    `source`: its graph. `progress` is called with the number of finished recordings. Raises: PublishedModelError if no
    recording has a complete window.
    """
    products = products_of(source)
    inputs = list(dict.fromkeys(product.node.inputs[0] for product in products))
    graph = Graph.of(model.graph.path, source.proto(inputs).SerializeToString())
    seen: dict[str, _Seen] = {name: _Seen() for name in inputs}
    dice = np.random.default_rng(1)
    longest_first = sorted(recordings, key=len, reverse=True)
    for first in range(0, len(longest_first), STREAMS):
        group = longest_first[first : first + STREAMS]
        for found in _run(model, graph, group, inputs):
            for name, x in found.items():
                seen[name].add(x, dice)
        progress(first + len(group))
    if not all(each.values for each in seen.values()):
        raise PublishedModelError("the recordings are too short for a step of the model; give longer ones")
    calibrated = [_calibrated(product, seen[product.node.inputs[0]]) for product in products]
    return sorted(calibrated, key=lambda each: each.snr_db)


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
        states = [
            results[name]
            if not tensor.appended
            else np.concatenate([state[:, tensor.appended :], results[name]], axis=1)
            for tensor, state, name in zip(contract.states, states, following, strict=True)
        ]
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
            case "bins first":
                feeds[declared.name] = np.ascontiguousarray(window.transpose(0, 2, 1))
            case _:
                feeds[declared.name] = window
    return feeds


def _calibrated(product: Product, seen: _Seen) -> Calibrated:
    values = np.concatenate(seen.values)
    low, high = np.percentile(values, [100 - PERCENTILE, PERCENTILE])
    scale = Scale.of(float(low), float(high))
    rows = np.stack(seen.rows)  # (R, K)
    weight, steps = quantized_weights(product.weight)
    exact = rows @ product.weight
    rounded = (scale.bytes_of(rows).astype(np.float32) - scale.zero) @ weight.astype(np.float32) * steps * scale.step
    noise = float(np.square(exact - rounded).sum())
    signal = float(np.square(exact).sum())
    return Calibrated(product.name, scale, 10 * float(np.log10(max(signal, 1e-20) / max(noise, 1e-20))))
