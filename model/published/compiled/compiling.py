"""The compiled step of a published model: for which kinds there is one, and whether its results match the graph's.

Both differ from the graph in floats by the noise of 8-bit products; that of the step must not be worse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.machine.compiled import source_digest
from model.published.compiled.fastconformer.network import FastConformer
from model.published.compiled.linears import Linear
from model.published.compiled.slots import CompiledSlots, CompiledStep
from model.published.compiled.zipformer2.network import Zipformer2Network
from model.published.contracts import Contract
from model.published.dequantized import dequantized
from model.published.files import PublishedFiles
from model.published.metadata import Graph
from model.published.onnx_graph import OnnxGraph
from model.published.products import digest_of_weights
from model.published.reading import contract_of_network
from model.published.rewriting.rewriting import Rewritten, places_of, read_graph
from model.published.rewriting.verdicts import COMPILED_STEP, Verdict, cached, keep
from model.published.scales import Scales
from model.published.stepping import GraphSlots

VERSION = 1  # of the compiled steps: part of the digest of a model that has one, and of the cache
WORSE = 2.0
"""Most noise of a compiled step in relation to that of the graph with the same products in 8-bit integers: both round
the same numbers, some of them to another byte, so they differ, but neither should be worse."""
LEAST_NOISE = 1e-6  # of the signal's energy: that of another order of sums in floats


class CompiledNetwork(Protocol):
    """Weights of a graph, and the step made of them."""

    @property
    def linears(self) -> Sequence[Linear]:
        """Linear layers, without scales."""
        ...

    def step(self, linears: Sequence[Linear]) -> CompiledStep:
        """Return the step with these layers, in the same order."""
        ...


Reader = Callable[[OnnxGraph, Graph, Contract], CompiledNetwork]
"""(published graph, its metadata, its contract) -> network. Raises: PublishedModelError with the reason why not."""

READERS: Mapping[str, Reader] = {
    "nemo-ctc": FastConformer.read,
    "nemo-transducer": FastConformer.read,
    "zipformer2-ctc": Zipformer2Network.read,
    "zipformer2-transducer": Zipformer2Network.read,
}
"""By kind of the contract."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled step with the graph that it computes, without a session, and the verdict that it gives the same."""

    role: str
    graph: Graph
    step: CompiledStep
    verdict: Verdict


def digest_of(scales: Scales) -> str:
    """Return the digest of a model with a compiled step. It identifies tickets."""
    listed = sorted(f"{weights} {scale.step!r} {scale.zero}" for weights, scale in scales.by_weights.items())
    return hashlib.sha256("\n".join((scales.files, str(VERSION), *listed)).encode()).hexdigest()


def compile_step(
    found: Rewritten, integers: Graph, scales: Scales, shape: tuple[int, ...], windows: Callable[[], NDArray[Any]]
) -> tuple[CompiledStep | None, Verdict]:
    """Return the compiled step of a rewritten graph, None if it has none, and the verdict, which is kept.

    `integers`: the graph with the products of `scales` in 8-bit integers. `shape`: of one stream's results. `windows`:
    feature windows (W, B, …) of speech, of which the results are compared; needed if no verdict is kept.
    """
    try:
        step = _step(read_graph(integers.path, found.published, from_integers=True), integers, found.published, scales)
    except (PublishedModelError, ValueError) as error:
        return None, Verdict(COMPILED_STEP, exact=False, applied=False, reason=str(error))
    places = _places(integers.path, scales)
    known = cached(places)
    if known is None:
        known = (_verified(found, integers, step, shape, windows()),)
        keep(places, known)
    return step if known[0].applied else None, known[0]


def verified_before(files: PublishedFiles, scales: Scales) -> Compiled | None:
    """Return the compiled step of a model, if a verdict is kept that it gives what the graph gives; else None."""
    role, path = next((role, path) for role, path in files.graphs.items() if role in {"model", "encoder"})
    known = cached(_places(path, scales))
    if known is None or not known[0].applied or scales.files != files.digest():
        return None
    try:
        graph, source = Graph.described(path)
        contract = contract_of_network(graph, encoder=role == "encoder")
        return Compiled(role, graph, _step(dequantized(source), graph, contract, scales), known[0])
    except (PublishedModelError, ValueError):
        return None


def _places(path: Path, scales: Scales) -> list[Path]:
    """Return the files in which a verdict may be kept; it holds for the code that was compared."""
    return places_of(path, "compiled", f"{digest_of(scales)} {source_digest()}")


def _step(source: OnnxGraph, graph: Graph, contract: Contract, scales: Scales) -> CompiledStep:
    """Return the step of a published graph. Raises: PublishedModelError or ValueError with the reason why not."""
    reader = READERS.get(contract.kind)
    if reader is None:
        raise PublishedModelError(f"there is none for {contract.kind}")
    network = reader(source, graph, contract)
    by_weights = scales.by_weights
    return network.step(
        [replace(linear, scale=by_weights.get(digest_of_weights(linear.weight))) for linear in network.linears]
    )


def _verified(
    found: Rewritten, integers: Graph, step: CompiledStep, shape: tuple[int, ...], windows: NDArray[Any]
) -> Verdict:
    """Compare a compiled step with the graph over windows (W, B, …)."""
    rows = windows.shape[1]
    floats, expected = (
        results_of(GraphSlots(graph, found.contract, shape, capacity=rows, largest=rows), windows)
        for graph in (found.graph, integers)
    )
    results = results_of(CompiledSlots(step, capacity=rows), windows)
    if results.shape != floats.shape:  # frames come first
        results = results.swapaxes(-1, -2)
    reason = rejection_reason(floats, expected, results)
    return Verdict(
        COMPILED_STEP, exact=False, applied=not reason, reason=reason, largest_difference=_largest(expected, results)
    )


def _largest(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.abs(one - other).max())


class Steps(Protocol):
    """Slots that run windows: `GraphSlots` or `CompiledSlots`."""

    def run(self, slots: NDArray[np.int64], windows: NDArray[Any], /) -> NDArray[np.float32]:
        """Step slots by one window each."""
        ...


def results_of(slots: Steps, windows: NDArray[Any]) -> NDArray[np.float32]:
    """Run windows (W, B, …) of B new streams. Returns: (W, B, …)."""
    return np.stack([slots.run(np.arange(windows.shape[1]), window) for window in windows])


def noise_of(reference: NDArray[np.float32], results: NDArray[np.float32]) -> float:
    """Energy of the difference, in relation to that of the reference."""
    difference = results.astype(np.float64) - reference
    return float(np.square(difference).sum() / max(1e-30, float(np.square(reference.astype(np.float64)).sum())))


def decibels(noise: float) -> float:
    """Signal-to-noise ratio of a relative noise."""
    return float(-10 * np.log10(max(noise, 1e-12)))


def rejection_reason(floats: NDArray[np.float32], integers: NDArray[np.float32], compiled: NDArray[np.float32]) -> str:
    """Return why a compiled step must not be used, or an empty string.

    Results (W, B, …) of the graph in floats, of the graph with products in 8-bit integers, and of the compiled step.
    """
    if not np.isfinite(compiled).all():
        return "its results are not finite"
    expected, found = noise_of(floats, integers), noise_of(floats, compiled)
    if found > WORSE * expected + LEAST_NOISE:
        return f"its signal-to-noise ratio is {decibels(found):.1f} dB, that of the graph {decibels(expected):.1f} dB"
    return ""
