"""The compiled step of a published model: for which kinds there is one, and whether its results are the graph's.

At the first load the step is compared with the graph in ONNX Runtime over speech, in floats: it differs by the order
of sums alone. With scales it has the same structure, and exact sums of 8-bit integers. The verdict is cached with the
graph, so that later loads need no session of the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.lm.cache import cache_dirs
from model.machine.instructions import instruction_set
from model.machine.native import source_digest
from model.published.compiled.fastconformer.network import FastConformer
from model.published.compiled.linears import pack, with_scales
from model.published.compiled.packed import SUFFIX, PackedLayers, packed_at
from model.published.compiled.slots import CompiledSlots, CompiledStep
from model.published.compiled.zipformer2.network import Zipformer2Network
from model.published.contracts import Contract, expected_inputs
from model.published.features import windows_of
from model.published.files import PublishedFiles
from model.published.graphs.dequantized import dequantized
from model.published.graphs.metadata import Graph, GraphInput
from model.published.graphs.onnx_file import OnnxFile
from model.published.graphs.onnx_graph import OnnxGraph, sizes_of
from model.published.reading import contract_of_network, description_of
from model.published.rows import speech
from model.published.scales import Scales
from model.published.stepping import GraphSlots, check_graph

QUANTIZED = frozenset({"DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLSTM"})
ROWS, WINDOWS = 3, 6  # of speech that are compared
MOST_NOISE = 1e-4
"""Most energy of the difference to the graph, in relation to its results. Another order of sums in floats gives 1e-12
for a FastConformer, and up to 1e-5 for a Zipformer of random weights, which amplifies it from layer to layer."""


CompiledNetwork = FastConformer | Zipformer2Network
"""Weights of a graph, and the step made of them."""

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
class Verdict:
    """Whether a compiled step runs instead of the graph, or why not."""

    applied: bool
    reason: str = ""
    largest_difference: float = 0.0


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """The network of a model, read from its file: the graph without a session, its operations in floats, its layers."""

    graph: Graph
    source: OnnxGraph
    contract: Contract
    compiled: CompiledNetwork

    @classmethod
    def read(cls, files: PublishedFiles, *, in_floats: bool = False) -> PublishedNetwork:
        """Read the network. Raises: PublishedModelError or ValueError with the reason why it has no compiled step.

        `in_floats`: of a released file in 8 bits, its weights in floats.
        """
        graph, source, _ = read_graph(files.network, in_floats=in_floats)
        contract = contract_of_network(graph, encoder="encoder" in files.graphs)
        if contract.kind not in READERS:
            raise PublishedModelError(f"there is none for {contract.kind}")
        source = source.with_sizes([shape for _, shape in expected_inputs(contract)])
        return cls(graph, source, contract, READERS[contract.kind](source, graph, contract))

    def step(self, scales: Scales | None = None, packed: PackedLayers | None = None) -> CompiledStep:
        """Return the step: in floats, or with the products of `scales` in 8-bit integers. Raises: ValueError.

        `packed`: the layers, packed with these scales.
        """
        return self.compiled.step(with_scales(self.compiled.linears, scales, packed), packed)

    def packed(self, files: PublishedFiles, scales: Scales) -> PackedLayers | None:
        """Return the layers packed with these scales in a file next to the graph, or in the cache, if one is writable.

        None for a network that packs its layers in another form. The file is written where there is none yet.
        """
        if not self.contract.kind.startswith("nemo"):
            return None
        key = hashlib.sha256(f"{scales.digest} {source_digest()}".encode()).hexdigest()[:16]
        places = [folder / f"{files.network.name}-{key}{SUFFIX}" for folder in cache_dirs(files.network)]
        scaled = (with_scales([linear], scales)[0] for linear in self.compiled.linears)
        return packed_at(places, ((linear.name, linear.scale, partial(pack, linear)) for linear in scaled))

    def compared(self, files: PublishedFiles) -> Verdict:
        """Compare the step in floats with the graph over speech."""
        step, contract = self.step(), self.contract
        published = Graph.of(files.network, self.source)
        shape = check_graph(published, contract)
        windows = speech_windows(files, contract, frames=step.result_shape[0])
        prompts = None if contract.prompts is None else np.linspace(0, contract.prompts.count - 1, ROWS, dtype=np.int64)
        expected = results_of(GraphSlots(published, contract, shape, capacity=ROWS, largest=ROWS), windows, prompts)
        results = results_of(CompiledSlots(step, capacity=ROWS), windows, prompts)
        if results.shape != expected.shape:  # frames come first
            results = results.swapaxes(-1, -2)
        noise = noise_of(expected, results)
        close = noise <= MOST_NOISE  # false for results that are not finite
        reason = "" if close else f"its signal-to-noise ratio to the graph is {decibels(noise):.1f} dB"
        return Verdict(close, reason, float(np.abs(expected - results).max()))


def compiled_network(files: PublishedFiles, digest: str, *, in_floats: bool) -> tuple[PublishedNetwork | None, Verdict]:
    """Return the network of a model if its compiled step gives what the graph gives, else None, and the verdict.

    `digest`: of the files.
    """
    import onnxruntime  # which processes that only decode may lack

    parts = digest, source_digest(), onnxruntime.__version__, instruction_set(), str(in_floats)
    name = f"{files.network.name}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.compiled.json"
    places = [folder / name for folder in cache_dirs(files.network)]
    verdict, network = _cached(places), None
    if verdict is None or verdict.applied:
        known = verdict is not None
        try:
            network = PublishedNetwork.read(files, in_floats=in_floats)
            verdict = verdict or network.compared(files)
        except (PublishedModelError, ValueError) as error:  # it is another network
            verdict = Verdict(False, str(error))
        except Exception as error:  # noqa: BLE001  of protobuf and ONNX Runtime, whose errors have no type of their own
            return None, Verdict(False, (str(error).strip() or type(error).__name__).splitlines()[0])
        if not known:
            _keep(places, verdict)
    return network if verdict.applied else None, verdict


def read_graph(path: Path, *, in_floats: bool) -> tuple[Graph, OnnxGraph, bool]:
    """Read a graph without a session, its operations in floats, and whether they are those of the file.

    `in_floats`: of a released file in 8 bits, its weights in floats. Raises: PublishedModelError.
    """
    graph, published = _described(path)
    source = dequantized(published) if in_floats else published
    if any(node.op in QUANTIZED for node in source.nodes):
        raise PublishedModelError("it is quantized")
    return graph, source, source is published


def _described(path: Path) -> tuple[Graph, OnnxGraph]:
    """Read a graph without a session, and its operations."""
    file = OnnxFile.read(path)
    source = OnnxGraph.read(file.model, file.weights)
    inputs = tuple(
        GraphInput(declared.name, "", tuple(axis.dim_value or axis.dim_param or None for axis in sizes_of(declared)))
        for declared in source.inputs
    )
    return Graph(path, None, source.metadata, inputs, source.output_names), source


def _cached(places: Sequence[Path]) -> Verdict | None:
    """Read the first valid verdict; None if there is none."""
    for path in places:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Verdict(**json.loads(path.read_text()))
    return None


def _keep(places: Sequence[Path], verdict: Verdict) -> None:
    """Write a verdict at the first writable place, if there is one."""
    for path in places:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(verdict)))
            return


def speech_windows(files: PublishedFiles, contract: Contract, *, frames: int) -> NDArray[Any]:
    """Return windows (WINDOWS, ROWS, …) of a recording, a different stretch in each row; `frames`: of a result."""
    description = description_of(files, contract, frames, "")
    audio = speech(description, ROWS, WINDOWS)
    streams = windows_of(description, contract.fbank, capacity=ROWS)
    steps = [streams.push(np.arange(ROWS), audio[:, step]) for step in range(audio.shape[1])]
    return np.stack([windows for ready, windows in steps if len(ready) == ROWS])


def results_of(
    slots: GraphSlots | CompiledSlots, windows: NDArray[Any], prompts: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Run windows (W, B, …) of B new streams, of these languages. Returns: (W, B, …)."""
    return np.stack([slots.run(np.arange(windows.shape[1]), window, prompts) for window in windows])


def noise_of(reference: NDArray[np.float32], results: NDArray[np.float32]) -> float:
    """Energy of the difference, in relation to that of the reference."""
    difference = results.astype(np.float64) - reference
    return float(np.square(difference).sum() / max(1e-30, float(np.square(reference.astype(np.float64)).sum())))


def decibels(noise: float) -> float:
    """Signal-to-noise ratio of a relative noise."""
    return float(-10 * np.log10(max(noise, 1e-12)))
