"""Released graphs in 8 bits as the source of weights: in floats again, and with static scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from model.machine.device import Device
from model.published.compiled.compiling import Verdict
from model.published.compiled.transducer.network import CompiledNetworks
from model.published.graphs.dequantized import dequantized
from model.published.graphs.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from tests.support.networks.compiled import SIZES, write_scales
from tests.support.networks.probes import make_probe
from tests.support.networks.probes.graph import Graph

FORMS = {
    "signed": {"weight_type": QuantType.QInt8, "reduce_range": True},  # or onnxruntime saturates on AVX2
    "unsigned": {"weight_type": QuantType.QUInt8},
    "by column": {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True},
}


def run(graph: Any, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("form", FORMS)
def test_products_and_convolutions_get_the_weights_that_the_integers_stand_for(form: str, tmp_path: Path) -> None:
    graph = Graph("products", 3)
    x = graph.input("x", ["N", 32, 6])
    y = graph("Conv", x, graph.weight(48, 32, 3), graph.weight(48), kernel_shape=[3], pads=[1, 1])
    y = graph("MatMul", graph("Transpose", y, perm=[0, 2, 1]), graph.weight(48, 64))
    graph.output(graph("Add", y, graph.weight(64)), "out", ["N", 6, 64])
    onnx.save(graph.model({}), tmp_path / "floats.onnx")
    quantize_dynamic(tmp_path / "floats.onnx", tmp_path / "bytes.onnx", **FORMS[form])
    floats, integers = (onnx.load(tmp_path / f"{name}.onnx") for name in ("floats", "bytes"))
    assert {"MatMulInteger", "ConvInteger"} <= {node.op_type for node in integers.graph.node}
    again = dequantized(OnnxGraph.read(integers))
    assert [node.op for node in again.nodes if node.op in {"MatMul", "Conv"}] == ["Conv", "MatMul"]
    assert not any("Integer" in node.op or "Quantize" in node.op for node in again.nodes)
    given = np.random.default_rng(1).standard_normal((2, 32, 6)).astype(np.float32)
    exact, rounded, found = (run(each, x=given) for each in (floats, integers, again.proto()))
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    assert np.abs(found - exact).mean() < np.abs(rounded - exact).mean()  # inputs are not rounded


@pytest.mark.parametrize("form", FORMS)
def test_a_table_and_an_lstm_get_the_weights_that_the_integers_stand_for(form: str, tmp_path: Path) -> None:
    graph = Graph("recurrent", 3)
    symbol = graph.input("symbol", ["N", 1], "int64")
    x = graph("Transpose", graph("Gather", graph.weight(40, 32), symbol), perm=[1, 0, 2])
    weights = [graph.weight(1, 64, size, scale=size**-0.5) for size in (32, 16)]
    y, _, _ = graph("LSTM", x, *weights, graph.weight(1, 128), outputs=3, hidden_size=16)
    graph.output(graph("Squeeze", y, [1]), "out", [1, "N", 16])
    onnx.save(graph.model({}), tmp_path / "floats.onnx")
    quantize_dynamic(tmp_path / "floats.onnx", tmp_path / "bytes.onnx", **FORMS[form])
    floats, integers = (onnx.load(tmp_path / f"{name}.onnx") for name in ("floats", "bytes"))
    assert {"DynamicQuantizeLSTM", "DequantizeLinear"} <= {node.op_type for node in integers.graph.node}
    again = dequantized(OnnxGraph.read(integers))
    assert not any("Quantize" in node.op or "Dequantize" in node.op for node in again.nodes)
    given = np.arange(40)[:, np.newaxis]
    exact, rounded, found = (run(each, symbol=given) for each in (floats, integers, again.proto()))
    assert np.abs(found - exact).max() < 0.1
    assert np.abs(found - rounded).max() < 0.01


def test_a_graph_in_floats_is_returned_as_it_is(tmp_path: Path) -> None:
    probe = make_probe("nemo-ctc", tmp_path)
    graph = OnnxGraph.read(onnx.load(probe.model))
    assert dequantized(graph) is graph


def released(kind: str, folder: Path) -> Path:
    """A folder that has nothing but files in 8 bits, as releases have; quantized by the released scripts' calls."""
    probe = make_probe(kind, folder / "floats", **SIZES[kind])
    target = folder / "released"
    target.mkdir()
    (target / "tokens.txt").write_bytes(probe.tokens.read_bytes())
    for path in probe.files.values():
        if kind.startswith("nemo") or path.name.startswith(("model", "encoder")):
            weights = QuantType.QUInt8 if kind.startswith("nemo") else QuantType.QInt8
            only = {} if kind.startswith("nemo") else {"op_types_to_quantize": ["MatMul"]}
            quantize_dynamic(path, target / path.name.replace(".onnx", ".int8.onnx"), weight_type=weights, **only)
        else:
            (target / path.name.replace(".onnx", ".int8.onnx")).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("kind", SIZES)
def test_a_released_file_runs_the_compiled_step_only_with_scales(kind: str, tmp_path: Path) -> None:
    folder = released(kind, tmp_path)
    as_released = PublishedModel.load(folder, device="cpu")
    assert (as_released.precision, as_released.compiled) == ("int8", None)
    assert as_released.verdict == Verdict(False, "it is quantized")
    floats = PublishedModel.of(as_released.files, Device("cpu"), in_floats=True)
    assert floats.precision == "fp32"
    assert floats.compiled is not None
    write_scales(folder)
    first, again = (PublishedModel.load(folder, device="cpu") for _ in range(2))
    assert first.compiled is not None
    assert again.compiled is not None
    assert len({first.digest, as_released.digest, floats.digest}) == 3
    assert again.digest == first.digest
    for model in (floats, again):
        assert model.graph_search == ""
        assert model.networks is None or isinstance(model.networks, CompiledNetworks)
