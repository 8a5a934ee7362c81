"""Ranges of the inputs of a transducer's decoder and joiner, sampled during its search in floats over recordings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.published.compiled.transducer.checking import read_weights
from model.published.compiled.transducer.network import CompiledNetworks
from model.published.compiled.transducer.weights import TransducerWeights
from model.published.published_model import PublishedModel
from model.published.transducer.greedy_search import GreedySearch
from model.published.transducer.networks import TransducerNetworks
from tutti_asr_lab.training.published.calibration import LEAST_SIZE, Calibrated, Seen, calibrated

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


class _SampledNetworks(CompiledNetworks):
    """The networks in floats; all calls add samples of their inputs to `seen`, by name of the linear layer."""

    def __init__(self, weights: TransducerWeights, published: TransducerNetworks) -> None:
        self._source, self._dice = weights, np.random.default_rng(1)
        self.seen = {linear.name: Seen(-1) for linear in weights.linears}
        super().__init__(weights, published)

    def _add(self, name: str, x: Floats) -> None:
        """Add samples of the inputs (N, K) of a layer."""
        self.seen[name].add(x, self._dice)

    def project(self, encoded: Floats) -> Floats:
        if self._source.frames is not None:
            self._add(self._source.frames.name, encoded)
        return super().project(encoded)

    def predict(self, symbols: Indices, states: Floats | None = None, /) -> Floats:
        source, add = self._source, self._add
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

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        total = frames + outputs
        self._add(
            self._source.scores.name, np.tanh(total) if self._source.activation == "Tanh" else np.maximum(total, 0)
        )
        return super().best(frames, outputs, written)


def calibrate_search(model: PublishedModel, outputs: Sequence[Floats]) -> list[Calibrated]:
    """Search outputs of recordings (T, D) in floats; return the products of decoder and joiner, if these are compiled.

    They are searched step by step, as streams are, so that samples are as many as those of the encoder.
    """
    files, networks = model.transducer, model.networks
    if files is None or not isinstance(networks, CompiledNetworks):
        return []
    weights = read_weights(files.decoder, files.joiner, recurrent=files.recurrent is not None)
    sampled, step = _SampledNetworks(weights, networks), model.config.frames_per_step
    search = GreedySearch(sampled)
    for frames in outputs:
        context, output = (part.copy() for part in search.networks.start)
        for first in range(model.config.delay_frames, len(frames), step):
            search.search(context, output, frames[np.newaxis, first : first + step])
    wide = [linear for linear in weights.linears if min(linear.weight.shape) >= LEAST_SIZE]
    return [calibrated(linear, sampled.seen[linear.name]) for linear in wide]
