"""Whether the compiled decoder and joiner of a transducer give what its graphs give: compared at each load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.compiled.compiling import MOST_NOISE, decibels, noise_of, read_graph
from model.published.compiled.linears import with_scales
from model.published.compiled.transducer.network import CompiledNetworks
from model.published.compiled.transducer.weights import TransducerWeights, read_transducer
from model.published.graphs.metadata import Graph
from model.published.scales import Scales
from model.published.transducer.networks import Recurrent, Stateless, TransducerNetworks

Floats = NDArray[np.float32]
Published = Stateless | Recurrent

COMPARED = 24  # rows of random symbols, states and frames


def compiled_networks(
    published: Published, scales: Scales | None, *, in_floats: bool
) -> tuple[TransducerNetworks, str]:
    """Return the networks compiled, or as published with the reason why they are not.

    `in_floats`: the weights of files in 8 bits are read as floats.
    """
    try:
        weights, reference = read_networks(published, in_floats=in_floats)
        compiled = CompiledNetworks(weights, published)
        noise = _noise(reference, compiled, weights)
    except (PublishedModelError, ValueError) as error:  # they are other networks
        return published, str(error)
    if not noise <= MOST_NOISE:
        return published, f"the signal-to-noise ratio of decoder and joiner to the graphs is {decibels(noise):.1f} dB"
    if scales is not None:
        scaled = weights.with_linears(with_scales(weights.linears, scales))
        compiled = CompiledNetworks(scaled, published)
    return compiled, ""


def read_networks(published: Published, *, in_floats: bool) -> tuple[TransducerWeights, Published]:
    """Return the weights of decoder and joiner, and the networks in floats that they are read from.

    Raises: PublishedModelError with the reason if they are other networks.
    """
    sources = []
    for graph in (published.decoder, published.joiner):
        _, source, same = read_graph(graph.path, in_floats=in_floats)
        sources.append((graph if same else Graph.of(graph.path, source), source))
    (decoder, first), (joiner, second) = sources
    weights = read_transducer(first, second, recurrent=isinstance(published, Recurrent))
    return weights, replace(published, decoder=decoder, joiner=joiner)


def read_weights(decoder: Path, joiner: Path, *, recurrent: bool) -> TransducerWeights:
    """Return the weights of decoder and joiner in floats. Raises: PublishedModelError if they are other networks."""
    first, second = (read_graph(path, in_floats=True)[1] for path in (decoder, joiner))
    return read_transducer(first, second, recurrent=recurrent)


def _noise(reference: TransducerNetworks, compiled: TransducerNetworks, weights: TransducerWeights) -> float:
    """Return the energy of the differences of scores and states, in relation to theirs, with random inputs."""
    dice = np.random.default_rng(5)
    symbols = dice.integers(0, weights.symbols, COMPARED)
    contexts: NDArray[np.generic] = dice.uniform(-1, 1, (COMPARED, 2, weights.layers, weights.hidden))
    contexts = contexts.astype(np.float32)
    if weights.context:
        contexts = dice.integers(0, weights.symbols, (COMPARED, weights.context))
        contexts[0] = -1  # a new stream
    width = weights.joined if weights.frames is None else weights.frames.weight.shape[0]
    frames = dice.standard_normal((1, COMPARED, width)).astype(np.float32)
    expected, results = (_results(networks, contexts, symbols, frames) for networks in (reference, compiled))
    return max(noise_of(one, other) for one, other in zip(expected, results, strict=True))


def _results(
    networks: TransducerNetworks, contexts: NDArray[np.generic], symbols: NDArray[np.int64], frames: Floats
) -> tuple[Floats, Floats]:
    """Return the log-probabilities of all symbols, and the contexts after those given."""
    contexts, outputs = networks.advance(contexts, symbols)
    scores = networks.join(networks.project(frames)[0], outputs)
    top = scores.max(axis=1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True)), contexts.astype(np.float32)
