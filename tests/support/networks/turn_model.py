"""A graph of the form of a turn model, whose answer has no meaning."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from model.turn_ends.whisper_features import BANDS, FRAMES


def write_turn_model(
    path: Path, *, name: str = "input_features", bands: int = BANDS, frames: int = FRAMES, scale: float = 1.0
) -> Path:
    """Write a graph whose answer is `scale` times the sigmoid of the mean of the features."""
    given = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", bands, frames])
    answer = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("ReduceMean", [name], ["mean"], axes=[1], keepdims=0),
        helper.make_node("ReduceMean", ["mean"], ["all"], axes=[1], keepdims=1),
        helper.make_node("Sigmoid", ["all"], ["sure"]),
        helper.make_node("Mul", ["sure", "scale"], ["logits"]),
    ]
    scales = [helper.make_tensor("scale", TensorProto.FLOAT, [1], [scale])]
    made = helper.make_graph(nodes, "turns", [given], [answer], scales)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
