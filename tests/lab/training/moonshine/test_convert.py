"""Weights of the network that writes segments, from the graphs of another project: names and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.errors import TrainingError
from tutti_asr_lab.training.moonshine.convert import Graph, converted
from tutti_asr_lab.training.quantization.rounding import rounded_outputs

WIDTH = 288


class Made(Graph):
    """A graph of nodes and tensors, without a file."""

    def __init__(self, nodes: list[tuple[str, str, list[str]]], tensors: dict[str, Any]) -> None:
        self.nodes, self.tensors = nodes, tensors


def encoder() -> Made:
    dice = np.random.default_rng(1)
    tensors = {
        "q": dice.integers(0, 255, (WIDTH, WIDTH)).astype(np.uint8),
        "q_scale": np.float32(0.5),
        "q_zero": np.uint8(120),
        "layers.0.mlp.fc1.bias": np.ones(4, np.float32),
        "fc1": dice.integers(0, 255, (WIDTH, 4)).astype(np.uint8),
        "norm": np.full(WIDTH, 2, np.float32),
        "layer_norm.weight": np.full(WIDTH, 3, np.float32),
        "first": dice.normal(size=(WIDTH, 1, 127)).astype(np.float32),
        "second": dice.normal(size=(8, 6, 7)).astype(np.float32),
        "second_bias": np.zeros(8, np.float32),
        "gain": np.ones((WIDTH, 1), np.float32),
        "shift": np.zeros((WIDTH, 1), np.float32),
    }
    nodes = [
        ("MatMulIntegerToFloat", "layers.0/self_attn/q_proj/MatMul_quant", ["x", "q", "s", "q_scale", "z", "q_zero"]),
        (
            "DynamicQuantizeMatMul",
            "layers.0/mlp/fc1/MatMul_quant",
            ["x", "fc1", "q_scale", "q_zero", "layers.0.mlp.fc1.bias"],
        ),
        ("LayerNormalization", "layers.0/input_layernorm/LayerNormalization", ["x", "norm", "zeros"]),
        ("FusedConv", "conv1/Conv", ["x", "first"]),
        ("Conv", "conv2/Conv", ["x", "second", "second_bias"]),
        ("Conv", "conv3/Conv", ["x", "second", "second_bias"]),
        ("Mul", "groupnorm/Mul", ["x", "gain"]),
        ("Add", "groupnorm/Add", ["x", "shift"]),
    ]
    return Made(nodes, tensors)


def test_each_output_has_a_scale_of_its_own_and_weights_are_near() -> None:
    weight = np.array([[1.0, -0.25, 0.0], [0.002, 0.0015, -0.002], [0.0, 0.0, 0.0]], np.float32)
    integers, scale = rounded_outputs(weight, 63)
    assert integers.tolist() == [[63, -16, 0], [63, 47, -63], [0, 0, 0]]
    assert np.abs(integers * scale[:, None] - weight).max(axis=1) == pytest.approx(np.zeros(3), abs=0.5 / 63)


def test_matrices_norms_and_convolutions_have_the_names_and_shapes_that_the_model_reads() -> None:
    made = encoder()
    decoder = Made(
        [("DynamicQuantizeMatMul", "proj_out/MatMul_quant", ["x", "q", "q_scale", "q_zero", ""])], made.tensors
    )
    decoder.nodes.append(("LayerNormalization", "model/decoder/norm/LayerNormalization", ["x", "norm", "zeros"]))
    tensors = converted(made, decoder)
    floats = (made.tensors["q"].astype(np.float32) - 120) * np.float32(0.5)
    query = tensors["encoder.0.query.weight"] * tensors["encoder.0.query.weight_scale"][:, None]
    assert query == pytest.approx(floats.T, abs=0.6)
    assert tensors["encoder.0.inner.bias"].tolist() == [1, 1, 1, 1]
    assert tensors["encoder.0.attention_norm"][0] == 2
    assert (tensors["encoder.norm"][0], tensors["decoder.norm"][0]) == (3, 2)
    assert tensors["symbols.weight"].shape == (WIDTH, WIDTH)
    assert np.abs(tensors["symbols.weight"]).max() == 63
    assert tensors["encoder.first"].shape == (WIDTH, 127)
    second = tensors["encoder.second.weight"] * tensors["encoder.second.weight_scale"][:, None]
    assert second.reshape(8, 7, 6) == pytest.approx(made.tensors["second"].transpose(0, 2, 1), abs=0.02)
    assert np.abs(tensors["encoder.second.weight"]).max() == 127


def test_a_graph_without_a_node_is_refused_by_name() -> None:
    with pytest.raises(TrainingError, match="no node 'conv9'"):
        encoder().constant("conv9", 1)
