"""Ranges of the inputs of a transducer's decoder and joiner, sampled during its search in floats over recordings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.published.compiled.transducer.checking import read_weights
from model.published.compiled.transducer.network import CompiledCalls, CompiledTransducer
from model.published.compiled.transducer.networks import CompiledNetworks
from model.published.compiled.transducer.weights import TransducerWeights
from model.published.greedy_search import GreedySearch
from model.published.published_model import PublishedModel
from tutti_asr_lab.training.published.calibration import LEAST_SIZE, Calibrated, Seen, calibrated

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


class _SampledTransducer(CompiledTransducer):
    """The networks in floats; all calls add samples of their inputs to `seen`, by name of the linear layer."""

    def __init__(self, weights: TransducerWeights) -> None:
        super().__init__(weights, weights.linears)
        self.source, self.dice = weights, np.random.default_rng(1)
        self.seen = {linear.name: Seen(-1) for linear in weights.linears}

    def add(self, name: str, x: Floats) -> None:
        """Add samples of the inputs (N, K) of a layer."""
        self.seen[name].add(x, self.dice)

    def calls(self) -> CompiledCalls:
        """Return calls whose inputs are sampled."""
        return _SampledCalls(self)


class _SampledCalls(CompiledCalls):
    def __init__(self, network: _SampledTransducer) -> None:
        super().__init__(network)
        self._sampled, self._source = network, network.source

    def project(self, encoded: Floats) -> Floats:
        if self._source.frames is not None:
            self._sampled.add(self._source.frames.name, encoded)
        return super().project(encoded)

    def predict(self, symbols: Indices, states: Floats | None = None, /) -> Floats:
        source, add = self._source, self._sampled.add
        before = None if states is None else states.copy()
        outputs = super().predict(symbols, states)
        embedded = np.where(symbols[..., np.newaxis] < 0, np.float32(0), source.embedding[symbols])
        x = embedded.reshape(len(symbols), -1)
        if before is None or states is None:
            add(source.prediction[0].name, x)
            decoded = np.maximum(x @ source.prediction[0].weight + source.prediction[0].bias, 0)
        else:
            for layer in range(source.layers):
                inputs, state = source.prediction[2 * layer : 2 * layer + 2]
                add(inputs.name, x)
                add(state.name, before[:, 0, layer])
                x = states[:, 0, layer]
            decoded = x
        if source.history is not None:
            add(source.history.name, decoded)
        return outputs

    def best(self, frames: Floats, history: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        total = frames + history
        self._sampled.add(
            self._source.scores.name, np.tanh(total) if self._source.activation == "Tanh" else np.maximum(total, 0)
        )
        return super().best(frames, history, written)


def calibrate_search(model: PublishedModel, outputs: Sequence[Floats]) -> list[Calibrated]:
    """Search outputs of recordings (T, D) in floats; return the products of decoder and joiner, if these are compiled.

    They are searched step by step, as streams are, so that samples are as many as those of the encoder.
    """
    files, networks = model.transducer, model.networks
    if files is None or not isinstance(networks, CompiledNetworks):
        return []
    weights = read_weights(files.decoder, files.joiner, recurrent=files.recurrent is not None)
    sampled, step = _SampledTransducer(weights), model.config.frames_per_step
    search = GreedySearch(CompiledNetworks(sampled, networks))
    for frames in outputs:
        context, output = (part.copy() for part in search.networks.start)
        for first in range(model.config.delay_frames, len(frames), step):
            search.search(context, output, frames[np.newaxis, first : first + step])
    wide = [linear for linear in weights.linears if min(linear.weight.shape) >= LEAST_SIZE]
    return [calibrated(linear, sampled.seen[linear.name]) for linear in wide]
