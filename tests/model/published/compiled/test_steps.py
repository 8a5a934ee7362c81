"""Compiled steps of published networks: the graph's results, in any batch, from any saved state, on every processor."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.compiled.compiling import READERS, PublishedNetwork, decibels, noise_of, results_of, speech_windows
from model.published.compiled.fastconformer.network import FastConformer
from model.published.compiled.slots import CompiledSlots, CompiledStep
from model.published.compiled.zipformer2.weights import read_weights
from model.published.files import PublishedFiles, find_files
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import Node
from model.published.scales import Scale
from model.published.stepping import GraphSlots, check_graph
from tests.support.networks.probes import make_probe
from tests.support.processors import AVX2, BASELINE, digest_elsewhere

Floats = NDArray[np.float32]
STEPS, ROWS = 12, 5
SMALL = {"hidden": 64, "heads": 2, "layers": 2}
WIDE: dict[str, Any] = {"query_head_dims": (16, 16), "value_head_dims": (12, 12), "num_heads": (4, 4)}
SIZES: dict[str, dict[str, Any]] = {
    "two frames a step": {"kind": "nemo-ctc", **SMALL},
    "one frame a step": {"kind": "nemo-ctc", **SMALL, "window": 17, "shift": 8, "left": 7},
    "many frames a step": {"kind": "nemo-ctc", **SMALL, "window": 121, "shift": 112, "left": 28},
    "encoder": {"kind": "nemo-transducer", **SMALL},
    "many bins": {"kind": "nemo-transducer", **SMALL, "bins": 128, "data": "encoder.data"},
    "languages": {"kind": "nemo-transducer", **SMALL, "bins": 128, "prompts": 16},
    "few bins": {"kind": "nemo-ctc", **SMALL, "bins": 45},
    "frames of a transducer": {
        "kind": "zipformer2-transducer",
        "encoder_dims": (64, 128),
        "feedforward_dims": (64, 128),
        "joiner_dim": 64,
        **WIDE,
    },
    "two stacks": {"kind": "zipformer2-ctc", "encoder_dims": (64, 128), "feedforward_dims": (64, 128), **WIDE},
    "odd bins of a transducer": {
        "kind": "zipformer2-transducer",
        "encoder_dims": (64,),
        "num_encoder_layers": (1,),
        "cnn_module_kernels": (7,),
        "left_context_len": (16,),
        "feedforward_dims": (64,),
        "joiner_dim": 64,
        "bins": 93,
        **{name: sizes[:1] for name, sizes in WIDE.items()},
    },
    "many bins of a zipformer": {
        "kind": "zipformer2-ctc",
        "encoder_dims": (64, 64),
        "feedforward_dims": (64, 64),
        "bins": 128,
        **WIDE,
    },
    "wide in the middle": {
        "kind": "zipformer2-ctc",
        "encoder_dims": (64, 128, 64, 64),
        "feedforward_dims": (64, 128, 64, 128),
        "num_encoder_layers": (1, 2, 1, 1),
        "cnn_module_kernels": (7, 5, 7, 5),
        "left_context_len": (16, 8, 4, 16),
        "query_head_dims": (16,) * 4,
        "value_head_dims": (12, 12, 16, 8),
        "num_heads": (4, 4, 4, 4),
    },
    "long chunk": {
        "kind": "zipformer2-ctc",
        "encoder_dims": (64, 64),
        "feedforward_dims": (64, 64),
        "cnn_module_kernels": (31, 15),
        "left_context_len": (64, 32),
        "window": 77,
        "shift": 64,
        **WIDE,
    },
}
TAMED = np.float32(0.7)
"""Factor of the weights of products: those of the probe are so large that rounding grows from layer to layer."""


@dataclass(frozen=True)
class Published:
    files: PublishedFiles
    network: PublishedNetwork
    session: Graph

    @property
    def windows(self) -> Floats:
        """Windows (STEPS, ROWS, L, 80) of speech."""
        speech = speech_windows(self.files, self.network.contract, frames=1)
        return np.stack([speech[step % len(speech)][np.arange(ROWS) % speech.shape[1]] for step in range(STEPS)])

    def step(self, *, integers: bool = True) -> CompiledStep:
        """The step in floats, or in 8-bit integers but for the layers that `tutti quantize` leaves in floats."""
        network, contract = self.network.compiled, self.network.contract
        linears, first = network.linears, 2 if contract.kind.startswith("zipformer2") else 0
        chosen = [replace(each, scale=Scale.of(-6, 6)) for each in linears[first:-1]]
        return network.step([*linears[:first], *chosen, linears[-1]] if integers else linears)

    def results(self) -> Floats:
        """Results of the graph."""
        contract = self.network.contract
        shape = check_graph(self.session, contract)
        slots = GraphSlots(self.session, contract, shape, capacity=ROWS, largest=ROWS)
        results = results_of(slots, self.windows)
        return results.swapaxes(-1, -2) if contract.kind == "nemo-transducer" else results


def loaded(folder: Path) -> Published:
    files = find_files(folder, "fp32")
    network = PublishedNetwork.read(files)
    source, contract = network.source, network.contract
    if contract.kind.startswith("zipformer2"):
        weights = {node.inputs[1] for node in source.nodes if node.op == "MatMul"}
        tamed = {name: value * TAMED if name in weights else value for name, value in source.constants.items()}
        source = replace(source, constants=tamed)
        network = replace(network, source=source, compiled=READERS[contract.kind](source, network.graph, contract))
    return Published(files, network, Graph.of(files.network, source))


@cache
def published(name: str, folder: Path) -> Published:
    make_probe(SIZES[name]["kind"], folder / name, **_changes(name))
    return loaded(folder / name)


def _changes(name: str) -> dict[str, Any]:
    return {key: value for key, value in SIZES[name].items() if key != "kind"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("name", SIZES)
def test_the_step_in_floats_gives_what_the_graph_gives(name: str, folder: Path) -> None:
    found = published(name, folder)
    results = results_of(CompiledSlots(found.step(integers=False), capacity=ROWS), found.windows)
    np.testing.assert_allclose(results, found.results(), atol=1e-4 if "nemo" in SIZES[name]["kind"] else 5e-5)


@pytest.mark.parametrize("name", [name for name in SIZES if SIZES[name]["kind"] != "zipformer2-transducer"])
def test_the_step_in_integers_adds_only_their_noise(name: str, folder: Path) -> None:
    found = published(name, folder)
    floats, integers = (
        results_of(CompiledSlots(found.step(integers=each), capacity=ROWS), found.windows) for each in (False, True)
    )
    assert decibels(noise_of(floats, integers)) > 15


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_a_stream_does_not_depend_on_its_batch_slot_or_threads(name: str, integers: bool, folder: Path) -> None:
    """Each stream alone in another slot gives what it gives in a batch over any number of threads."""
    found = published(name, folder)
    step, windows = found.step(integers=integers), found.windows
    together = results_of(CompiledSlots(step, capacity=ROWS, threads=2), windows)
    for threads in (1, 3, 4):
        assert results_of(CompiledSlots(step, capacity=ROWS, threads=threads), windows).tobytes() == together.tobytes()
    for threads, rows in ((2, 1), (2, 3), (3, ROWS)):  # as a large network: products are divided, or rows
        large = CompiledSlots(step, capacity=ROWS, threads=threads, large=0)
        assert results_of(large, windows[:, :rows]).tobytes() == together[:, :rows].tobytes()
    for row in range(ROWS):
        slots = CompiledSlots(step, capacity=ROWS)
        alone = [slots.run(np.array([ROWS - 1 - row]), window[row : row + 1])[0] for window in windows]
        assert np.stack(alone).tobytes() == together[:, row].tobytes()


def test_a_batch_may_be_larger_than_a_block_of_streams(folder: Path) -> None:
    found = published("two stacks", folder)
    step, windows = found.step(), found.windows[:2]
    many = np.concatenate([windows] * 4, axis=1)[:, : step.block + 3]
    together = results_of(CompiledSlots(step, capacity=step.block + 3), many)
    few = results_of(CompiledSlots(step, capacity=ROWS), windows)
    assert many.shape[1] > step.block
    for row in range(many.shape[1]):
        assert together[:, row].tobytes() == few[:, row % ROWS].tobytes()


@pytest.mark.parametrize("name", SIZES)
def test_a_stream_continues_from_its_exported_state(name: str, folder: Path) -> None:
    """A stream moved to other slots after each step gives what it gives in one; a reset slot is a new one."""
    found = published(name, folder)
    step, windows = found.step(), found.windows
    expected = results_of(CompiledSlots(step, capacity=ROWS), windows)
    slots = CompiledSlots(step, capacity=1)
    results = []
    for window in windows:
        results.append(slots.run(np.array([0]), window[:1])[0])
        state = slots.states.export(0)
        slots = CompiledSlots(step, capacity=2)
        slots.run(np.array([0, 1]), window[:2])  # another stream's state
        slots.states.restore(0, state)
    assert np.stack(results).tobytes() == expected[:, 0].tobytes()
    slots.states.reset(0)
    assert slots.run(np.array([0]), windows[0][:1]).tobytes() == expected[0, 0].tobytes()


def digest(folder: str) -> str:
    """Return a digest of the results of speech in floats and in integers, from samples to outputs."""
    found, made = loaded(Path(folder)), hashlib.sha256()
    for integers in (False, True):
        step = found.step(integers=integers)
        results = results_of(CompiledSlots(step, capacity=ROWS), found.windows)
        few = results_of(CompiledSlots(step, capacity=ROWS, threads=2, large=0), found.windows[:, :2])
        assert few.tobytes() == results[:, :2].tobytes()
        made.update(results.tobytes())
    return made.hexdigest()


@pytest.mark.release
@pytest.mark.parametrize("switches", [AVX2, BASELINE], ids=["avx2", "portable"])
@pytest.mark.parametrize("name", ["many bins", "many bins of a zipformer"])
def test_the_digest_is_the_same_on_every_processor(name: str, switches: Mapping[str, str], folder: Path) -> None:
    published(name, folder)
    made = str(folder / name)
    assert digest_elsewhere(__name__, switches, made) == digest(made)


def older_norm(node: Node) -> list[Node]:
    """Return the operations of a layer norm as exporters before opset 17 write it."""
    x, gain, bias = node.inputs
    names = [f"{node.output}/{number}" for number in range(8)]
    steps: list[tuple[str, list[str]]] = [
        ("ReduceMean", [x]),
        ("Sub", [x, names[0]]),
        ("Pow", [names[1], "two"]),
        ("ReduceMean", [names[2]]),
        ("Add", [names[3], "epsilon"]),
        ("Sqrt", [names[4]]),
        ("Div", [names[1], names[5]]),
        ("Mul", [names[6], gain]),
        ("Add", [names[7], bias]),
    ]
    attributes = {"axes": [-1]}
    outputs = [*names, node.output]
    return [
        Node(op, tuple(inputs), (output,), attributes if op == "ReduceMean" else {}, "")
        for (op, inputs), output in zip(steps, outputs, strict=True)
    ]


@pytest.mark.parametrize(("epsilon", "reason"), [(1e-5, ""), (1e-3, "a norm has the epsilon 0.001")])
def test_norms_of_older_exporters_are_read(epsilon: float, reason: str, folder: Path) -> None:
    found = published("two frames a step", folder)
    graph, network = found.network.source, found.network.compiled
    nodes = [each for node in graph.nodes for each in (older_norm(node) if node.op == "LayerNormalization" else [node])]
    constants = {**graph.constants, "two": np.array([2], np.float32), "epsilon": np.array([epsilon], np.float32)}
    older = replace(graph, nodes=tuple(nodes), constants=constants)
    assert len(older.nodes) > len(graph.nodes)
    with pytest.raises(PublishedModelError, match=reason) if reason else contextlib.nullcontext():
        read = FastConformer.read(older, found.network.graph, found.network.contract)
        for old, new in zip(network.weights.layers, read.weights.layers, strict=True):
            for norm, same in zip((*old.norms, old.convolution_norm), (*new.norms, new.convolution_norm), strict=True):
                assert norm is not None
                assert same is not None
                np.testing.assert_array_equal(norm.weight, same.weight)
                np.testing.assert_array_equal(norm.bias, same.bias)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("t-one-ctc", {}, "there is none for t-one-ctc"),
        ("nemo-ctc", {"hidden": 32, "heads": 4}, "4 heads of 8 numbers are not supported"),
        ("nemo-ctc", {"hidden": 32, "left": 15}, "15 cached frames are no multiple of the 2 of a step"),
        ("zipformer2-ctc", {}, r"its sizes \(16, 12, 8\) are not multiples of 16"),
        ("zipformer2-ctc", _changes("two stacks") | {"left_context_len": (24, 12)}, "a left context of 24 frames"),
    ],
)
def test_another_network_is_refused_with_the_reason(
    kind: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_probe(kind, tmp_path, **changes)
    with pytest.raises(PublishedModelError, match=reason):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("name", "operation", "other", "reason"),
    [
        ("two frames a step", "LayerNormalization", "Identity", "is not that of a FastConformer: "),
        ("two stacks", "Sigmoid", "HardSigmoid", "it has nodes HardSigmoid"),
        ("two stacks", "Tanh", "Sigmoid", "it has 2 nodes Tanh instead of 3"),
        ("two stacks", "Pow", "Mul", "a norm has other operations than BiasNorm"),
    ],
)
def test_other_operations_are_refused(name: str, operation: str, other: str, reason: str, folder: Path) -> None:
    network = published(name, folder).network
    nodes = list(network.source.nodes)
    place = max(number for number, node in enumerate(nodes) if node.op == operation)
    nodes[place] = replace(nodes[place], op=other)
    with pytest.raises(PublishedModelError, match=reason):
        READERS[network.contract.kind](replace(network.source, nodes=tuple(nodes)), network.graph, network.contract)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("num_encoder_layers", "1,1", "encoders.1.layers.0 has position scores of shape"),
        ("num_encoder_layers", "2,2", "encoders.1.layers.1 has position scores of shape"),
        ("cnn_module_kernels", "7,7", "a convolution is"),
        ("num_heads", "4,2", "encoders.1.layers.0 has position scores of shape"),
    ],
)
def test_metadata_of_another_network_is_refused(key: str, value: str, reason: str, folder: Path) -> None:
    found = published("two stacks", folder)
    other = replace(found.network.graph, metadata={**found.network.graph.metadata, key: value})
    with pytest.raises(PublishedModelError, match=reason):
        read_weights(found.network.source, other, found.network.contract)


def test_the_step_is_shared_by_all_slots(folder: Path) -> None:
    found = published("two frames a step", folder)
    step, windows = found.step(integers=False), found.windows
    assert step.weight_bytes > sum(each.weight.nbytes for each in found.network.compiled.linears)
    one, other = CompiledSlots(step, capacity=1), CompiledSlots(step, capacity=1)
    first = one.run(np.array([0]), windows[0][:1])
    other.run(np.array([0]), windows[1][:1])
    assert other.run(np.array([0]), windows[0][:1]).tobytes() != first.tobytes()
