"""The compiled step of a FastConformer: the graph's results, in any batch, from any saved state, on every processor."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.errors import PublishedModelError
from model.machine.device import Device
from model.published.compiled.compiling import decibels, noise_of, results_of
from model.published.compiled.fastconformer.network import FastConformer, FastConformerStep
from model.published.compiled.linears import Linear
from model.published.compiled.slots import CompiledSlots
from model.published.files import find_files
from model.published.onnx_graph import Node, OnnxGraph
from model.published.published_model import PublishedModel
from model.published.quantization.products import Scale
from model.published.rewriting.rewriting import read_graph
from model.published.stepping import GraphSlots
from tests.model.published.compiled.steps import (
    ROWS,
    check_digest,
    check_exported_states,
    check_streams_alone,
    digest_of,
    windows_of,
)
from tests.support.networks.probes import make_probe
from tests.support.processors import AVX2, BASELINE

SIZES: dict[str, dict[str, Any]] = {
    "two frames a step": {"kind": "nemo-ctc"},
    "one frame a step": {"kind": "nemo-ctc", "window": 17, "shift": 8, "left": 7},
    "many frames a step": {"kind": "nemo-ctc", "window": 121, "shift": 112, "left": 28},
    "encoder": {"kind": "nemo-transducer"},
}


@cache
def published(name: str, folder: Path) -> tuple[PublishedModel, OnnxGraph, FastConformer]:
    changes = dict(SIZES[name])
    make_probe(changes.pop("kind"), folder, size="exported", hidden=64, heads=2, layers=2, **changes)
    model, found = PublishedModel.load_with_source(find_files(folder, "fp32"), Device("cpu"), "off")
    graph = read_graph(model.graph.path, found.published)
    return model, graph, FastConformer.read(graph, model.graph, found.published)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fastconformer")


def scaled(linears: Sequence[Linear]) -> list[Linear]:
    """Layers in 8-bit integers, but for the last, as `tutti quantize` chooses them."""
    return [Linear(each.name, each.weight, each.bias, Scale.of(-6, 6)) for each in linears[:-1]] + list(linears[-1:])


@pytest.mark.parametrize("name", SIZES)
def test_the_step_in_floats_gives_what_the_graph_gives(name: str, folder: Path) -> None:
    model, _, network = published(name, folder / name)
    windows = windows_of(model)
    graph = GraphSlots(model.graph, model.contract, model.result_shape, capacity=ROWS, largest=ROWS)
    expected = results_of(graph, windows)
    found = results_of(CompiledSlots(network.step(network.linears), capacity=ROWS), windows)
    if model.bins_first:
        expected = expected.swapaxes(-1, -2)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_step_in_integers_adds_only_their_noise(folder: Path) -> None:
    model, _, network = published("two frames a step", folder / "two frames a step")
    windows = windows_of(model)
    floats = results_of(CompiledSlots(network.step(network.linears), capacity=ROWS), windows)
    integers = results_of(CompiledSlots(network.step(scaled(network.linears)), capacity=ROWS), windows)
    assert decibels(noise_of(floats, integers)) > 15


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_a_stream_does_not_depend_on_its_batch_slot_or_threads(name: str, integers: bool, folder: Path) -> None:
    model, _, network = published(name, folder / name)
    step = network.step(scaled(network.linears) if integers else network.linears)
    check_streams_alone(step, windows_of(model))


@pytest.mark.parametrize("name", SIZES)
def test_a_stream_continues_from_its_exported_state(name: str, folder: Path) -> None:
    model, _, network = published(name, folder / name)
    check_exported_states(network.step(scaled(network.linears)), windows_of(model))


def digest_of_folder(folder: Path) -> str:
    """Digest of the log-probs of speech in integers, from samples to outputs."""
    model, found = PublishedModel.load_with_source(find_files(folder, "fp32"), Device("cpu"), "off")
    network = FastConformer.read(read_graph(model.graph.path, found.published), model.graph, found.published)
    return digest_of(network.step(scaled(network.linears)), model)


@pytest.mark.release
@pytest.mark.parametrize("switches", [AVX2, BASELINE], ids=["avx2", "portable"])
def test_the_digest_is_the_same_on_every_processor(switches: dict[str, str], folder: Path) -> None:
    name = "two frames a step"
    published(name, folder / name)
    check_digest(sys.modules[__name__], folder / name, switches)


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
    model, graph, network = published("two frames a step", folder / "two frames a step")
    nodes = [each for node in graph.nodes for each in (older_norm(node) if node.op == "LayerNormalization" else [node])]
    constants = {**graph.constants, "two": np.array([2], np.float32), "epsilon": np.array([epsilon], np.float32)}
    older = dataclasses.replace(graph, nodes=tuple(nodes), constants=constants)
    assert len(older.nodes) > len(graph.nodes)
    with pytest.raises(PublishedModelError, match=reason) if reason else contextlib.nullcontext():
        found = FastConformer.read(older, model.graph, model.contract)
        for old, new in zip(network.weights.layers, found.weights.layers, strict=True):
            for norm, same in zip((*old.norms, old.convolution_norm), (*new.norms, new.convolution_norm), strict=True):
                assert norm is not None
                assert same is not None
                np.testing.assert_array_equal(norm.weight, same.weight)
                np.testing.assert_array_equal(norm.bias, same.bias)


def test_another_network_is_refused_with_the_reason(tmp_path: Path) -> None:
    make_probe("nemo-ctc", tmp_path, size="small")
    model, found = PublishedModel.load_with_source(find_files(tmp_path, "fp32"), Device("cpu"), "off")
    with pytest.raises(PublishedModelError, match="subsampling is not that of a FastConformer"):
        FastConformer.read(read_graph(model.graph.path, found.published), model.graph, found.published)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 32, "heads": 4}, "4 heads of 8 numbers are not supported"),
        ({"hidden": 32, "heads": 2, "left": 15}, "15 cached frames are no multiple of the 2 of a step"),
    ],
)
def test_sizes_that_the_step_does_not_compute_are_refused(changes: dict[str, int], reason: str, tmp_path: Path) -> None:
    make_probe("nemo-ctc", tmp_path, size="exported", **changes)
    model, found = PublishedModel.load_with_source(find_files(tmp_path, "fp32"), Device("cpu"), "off")
    with pytest.raises(PublishedModelError, match=reason):
        FastConformer.read(read_graph(model.graph.path, found.published), model.graph, found.published)


def test_the_step_is_shared_by_all_slots(folder: Path) -> None:
    model, _, network = published("two frames a step", folder / "two frames a step")
    step = network.step(network.linears)
    assert isinstance(step, FastConformerStep)
    assert step.weight_bytes > sum(each.weight.nbytes for each in network.linears)
    windows = windows_of(model)
    one, other = CompiledSlots(step, capacity=1), CompiledSlots(step, capacity=1)
    first = one.run(np.array([0]), windows[0][:1])
    other.run(np.array([0]), windows[1][:1])
    assert other.run(np.array([0]), windows[0][:1]).tobytes() != first.tobytes()
