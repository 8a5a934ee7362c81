"""The compiled step of Zipformer 2: the graph's results, in any batch, from any saved state, on every processor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.errors import PublishedModelError
from model.machine.device import Device
from model.published.compiled.compiling import decibels, noise_of, results_of
from model.published.compiled.linears import Linear
from model.published.compiled.slots import CompiledSlots
from model.published.compiled.zipformer2.network import Zipformer2Network, Zipformer2Step
from model.published.compiled.zipformer2.weights import Zipformer2Weights, read_weights
from model.published.files import find_files
from model.published.metadata import Graph
from model.published.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.quantization.products import Scale
from model.published.rewriting.rewriting import read_graph
from model.published.stepping import GraphSlots
from tests.model.published.compiled.steps import (
    ROWS,
    Floats,
    check_digest,
    check_exported_states,
    check_streams_alone,
    digest_of,
    windows_of,
)
from tests.model.published.compiled.zipformer2_reference import Stream
from tests.support.networks.probes import make_probe
from tests.support.processors import AVX2, BASELINE

WIDE: dict[str, Any] = {"query_head_dims": (16, 16), "value_head_dims": (12, 12), "num_heads": (4, 4)}
SIZES: dict[str, dict[str, Any]] = {
    "two stacks": {"encoder_dims": (64, 128), "feedforward_dims": (64, 128), **WIDE},
    "wide in the middle": {
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
    model: PublishedModel  # with the probe's own weights
    source: OnnxGraph
    graph: Graph
    network: Zipformer2Network

    @property
    def weights(self) -> Zipformer2Weights:
        return read_weights(self.source, self.graph, self.model.contract)

    def results(self, windows: Floats) -> Floats:
        """Results of the graph."""
        rows = windows.shape[1]
        slots = GraphSlots(self.graph, self.model.contract, self.model.result_shape, capacity=rows, largest=rows)
        return results_of(slots, windows)


def loaded(folder: Path) -> Published:
    model, found = PublishedModel.load_with_source(find_files(folder, "fp32"), Device("cpu"), "off")
    source = read_graph(model.graph.path, found.published)
    weights = {node.inputs[1] for node in source.nodes if node.op == "MatMul"}
    tamed = {name: value * TAMED if name in weights else value for name, value in source.constants.items()}
    source = replace(source, constants=tamed)
    graph = Graph.of(model.graph.path, source.proto().SerializeToString())
    return Published(model, source, graph, Zipformer2Network.read(source, graph, found.published))


@cache
def published(name: str, folder: Path) -> Published:
    make_probe("zipformer2-ctc", folder / name, size="exported", **SIZES[name])
    return loaded(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zipformer2")


def scaled(linears: Sequence[Linear]) -> list[Linear]:
    """Layers in 8-bit integers, but for the first two and the last, as `tutti quantize` chooses them."""
    chosen = [Linear(each.name, each.weight, each.bias, Scale.of(-6, 6)) for each in linears[2:-1]]
    return [*linears[:2], *chosen, linears[-1]]


@pytest.mark.parametrize("name", SIZES)
def test_the_weights_are_those_of_the_graph(name: str, folder: Path) -> None:
    found = published(name, folder)
    windows, stream = windows_of(found.model)[:, :1], Stream(found.weights)
    results = np.stack([stream.step(window[0]) for window in windows])
    np.testing.assert_allclose(results, found.results(windows)[:, 0], atol=5e-5)


@pytest.mark.parametrize("name", SIZES)
def test_the_step_in_floats_gives_what_the_graph_gives(name: str, folder: Path) -> None:
    found = published(name, folder)
    windows, step = windows_of(found.model), found.network.step(found.network.linears)
    results = results_of(CompiledSlots(step, capacity=ROWS), windows)
    np.testing.assert_allclose(results, found.results(windows), atol=5e-5)


def test_a_transducer_s_encoder_gives_its_outputs_without_log_softmax(folder: Path) -> None:
    found = published("two stacks", folder)
    head = found.weights.head
    narrow = replace(head, weight=head.weight[:, :24].copy(), bias=head.bias[:24] + 1)
    weights = replace(found.weights, head=narrow, log_probs=False)
    windows, stream = windows_of(found.model)[:, :1], Stream(weights)
    step = Zipformer2Step(weights, weights.linears)
    assert step.result_shape == (8, 24)
    results = results_of(CompiledSlots(step, capacity=1), windows)[:, 0]
    np.testing.assert_allclose(results, np.stack([stream.step(window[0]) for window in windows]), atol=5e-5)


@pytest.mark.parametrize("name", SIZES)
def test_the_step_in_integers_adds_only_their_noise(name: str, folder: Path) -> None:
    found = published(name, folder)
    windows, network = windows_of(found.model), found.network
    floats = results_of(CompiledSlots(network.step(network.linears), capacity=ROWS), windows)
    integers = results_of(CompiledSlots(network.step(scaled(network.linears)), capacity=ROWS), windows)
    assert decibels(noise_of(floats, integers)) > 15


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_a_stream_does_not_depend_on_its_batch_slot_or_threads(name: str, integers: bool, folder: Path) -> None:
    found = published(name, folder)
    windows, linears = windows_of(found.model), found.network.linears
    step = found.network.step(scaled(linears) if integers else linears)
    check_streams_alone(step, windows)


def test_a_batch_may_be_larger_than_a_block_of_streams(folder: Path) -> None:
    found = published("two stacks", folder)
    step, windows = found.network.step(scaled(found.network.linears)), windows_of(found.model)[:2]
    many = np.concatenate([windows] * 4, axis=1)[:, : step.block + 3]
    together = results_of(CompiledSlots(step, capacity=step.block + 3), many)
    few = results_of(CompiledSlots(step, capacity=ROWS), windows)
    assert many.shape[1] > step.block
    for row in range(many.shape[1]):
        assert together[:, row].tobytes() == few[:, row % ROWS].tobytes()


@pytest.mark.parametrize("name", SIZES)
def test_a_stream_continues_from_its_exported_state(name: str, folder: Path) -> None:
    found = published(name, folder)
    check_exported_states(found.network.step(scaled(found.network.linears)), windows_of(found.model))


def digest_of_folder(folder: Path) -> str:
    """Digest of the log-probs of speech in integers, from samples to outputs."""
    found = loaded(folder)
    return digest_of(found.network.step(scaled(found.network.linears)), found.model)


@pytest.mark.release
@pytest.mark.parametrize("switches", [AVX2, BASELINE], ids=["avx2", "portable"])
def test_the_digest_is_the_same_on_every_processor(switches: dict[str, str], folder: Path) -> None:
    name = "two stacks"
    published(name, folder)
    check_digest(sys.modules[__name__], folder / name, switches)


@pytest.mark.parametrize(
    ("size", "changes", "reason"),
    [
        ("small", {}, "it has nodes Cos, LayerNormalization, Sin"),
        ("exported", {}, r"its sizes \(16, 12, 8\) are not multiples of 16"),
        ("exported", {**SIZES["two stacks"], "left_context_len": (24, 12)}, "a left context of 24 frames"),
    ],
)
def test_another_network_is_refused_with_the_reason(
    size: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_probe("zipformer2-ctc", tmp_path, size=size, **changes)
    with pytest.raises(PublishedModelError, match=reason):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("operation", "other", "reason"),
    [
        ("Sigmoid", "HardSigmoid", "it has nodes HardSigmoid"),
        ("Tanh", "Sigmoid", "it has 2 nodes Tanh instead of 3"),
        ("Pow", "Mul", "a norm has other operations than BiasNorm"),
    ],
)
def test_other_operations_are_refused(operation: str, other: str, reason: str, folder: Path) -> None:
    found = published("two stacks", folder)
    nodes = list(found.source.nodes)
    place = max(number for number, node in enumerate(nodes) if node.op == operation)
    nodes[place] = replace(nodes[place], op=other)
    with pytest.raises(PublishedModelError, match=reason):
        read_weights(replace(found.source, nodes=tuple(nodes)), found.graph, found.model.contract)


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
    other = replace(found.graph, metadata={**found.graph.metadata, key: value})
    with pytest.raises(PublishedModelError, match=reason):
        read_weights(found.source, other, found.model.contract)
