"""`python -m tutti_asr_lab.training.moonshine.convert WHEEL`: weights of moonshine-voice 0.1.0 for the second pass.

The wheel (MIT) carries Moonshine tiny.en as two graphs in onnxruntime's own format, with 8-bit weights, one scale and
zero point a matrix. Here each output gets a scale of its own, and weights are within ±63 (`model.int8.quantized`);
those of the second and third convolution, float32 there, within ±127.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession
from safetensors.numpy import save

from model.checkpoint import write_atomically
from model.errors import TrainingError
from model.int8.quantized import LARGEST_WEIGHT
from model.moonshine.kernels import ZERO_POINT
from model.moonshine.model import SHIPPED, SIZES
from tutti_asr_lab.training.quantization.rounding import rounded_outputs
from tutti_asr_lab.training.wheels import open_wheel

WHEEL = "moonshine_voice-0.1.0-py3-none-manylinux_2_34_x86_64.whl"
SHA256 = "0f833deb43bad5dcfb4cfd3257b6df83ef9abd3f27be3199622fe41932e8d916"
FOLDER = "moonshine_voice/assets/tiny-en"
LARGEST_FILTER = 127
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64}
PRODUCTS = {"MatMulIntegerToFloat": (1, 3, 5), "DynamicQuantizeMatMul": (1, 2, 3)}
"""Inputs of these operators that are weights (in, out), scale and zero point."""
ENCODER = {"self_attn.q_proj": "query", "self_attn.k_proj": "key", "self_attn.v_proj": "value", "self_attn.o_proj":
           "attended", "mlp.fc1": "inner", "mlp.fc2": "outer"}  # fmt: skip
DECODER = ENCODER | {"encoder_attn.q_proj": "cross_query", "encoder_attn.k_proj": "cross_key",
                     "encoder_attn.v_proj": "cross_value", "encoder_attn.o_proj": "crossed"}  # fmt: skip
ENCODER_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_norm"}
DECODER_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "cross_norm",
                 "final_layernorm": "feed_norm"}  # fmt: skip

Tensors = dict[str, NDArray[Any]]


class Graph:
    """A graph in onnxruntime's format, with the subgraphs of its branches."""

    def __init__(self, blob: bytes) -> None:
        main = InferenceSession.GetRootAsInferenceSession(bytearray(blob), 0).Model().Graph()
        self.tensors: Tensors = {}
        self.nodes: list[tuple[str, str, list[str]]] = []
        for graph in _with_branches(main):
            for index in range(graph.InitializersLength()):
                tensor = graph.Initializers(index)
                shape = [tensor.Dims(axis) for axis in range(tensor.DimsLength())]
                values = tensor.RawDataAsNumpy().view(TYPES[tensor.DataType()]).reshape(shape)
                self.tensors[tensor.Name().decode()] = values
            for index in range(graph.NodesLength()):
                node = graph.Nodes(index)
                inputs = [node.Inputs(slot).decode() for slot in range(node.InputsLength())]
                self.nodes.append((node.OpType().decode(), node.Name().decode().strip("/"), inputs))

    def products(self) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
        """Yield name, weights (out, in) and bias of each matrix product."""
        for operator, name, inputs in self.nodes:
            if operator in PRODUCTS:
                weight, scale, zero = (self.tensors[inputs[slot]] for slot in PRODUCTS[operator])
                floats = (weight.astype(np.float32) - np.float32(zero)) * np.float32(scale)
                biases = [self.tensors[one] for one in inputs if ".bias" in one]
                bias = biases[0] if biases else np.zeros(floats.shape[1], np.float32)
                yield name.removesuffix("/MatMul_quant").replace("/", "."), floats.T, bias

    def norms(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield name and gain of each layer norm."""
        for operator, name, inputs in self.nodes:
            if operator == "LayerNormalization":
                yield name.removesuffix("/LayerNormalization").replace("/", "."), self.tensors[inputs[1]]

    def constant(self, node: str, slot: int) -> NDArray[Any]:
        """Return an input of a node that is a constant. Raises: TrainingError."""
        for _, name, inputs in self.nodes:
            if name == node:
                return self.tensors[inputs[slot]]
        raise TrainingError(f"the graph has no node {node!r}")


def _with_branches(graph: Any) -> Iterator[Any]:
    yield graph
    for index in range(graph.NodesLength()):
        node = graph.Nodes(index)
        for number in range(node.AttributesLength()):
            branch = node.Attributes(number).G()
            if branch is not None:
                yield from _with_branches(branch)


def converted(encoder: Graph, decoder: Graph) -> Tensors:
    """Return the tensors that `model.moonshine.model.Moonshine` reads."""
    out: Tensors = {}

    def add(name: str, weight: NDArray[np.float32], bias: NDArray[np.float32], largest: int = LARGEST_WEIGHT) -> None:
        out[f"{name}.weight"], out[f"{name}.weight_scale"] = rounded_outputs(weight, largest)
        out[f"{name}.bias"] = bias.astype(np.float32)
        if largest == LARGEST_WEIGHT:
            out[f"{name}.input_scale"], out[f"{name}.input_zero"] = np.array(1.0, np.float32), np.array(ZERO_POINT)

    for graph, side, names, norms in (
        (encoder, "encoder", ENCODER, ENCODER_NORMS),
        (decoder, "decoder", DECODER, DECODER_NORMS),
    ):
        for name, weight, bias in graph.products():
            if name == "proj_out":
                add("symbols", weight, bias)
            else:
                block, _, part = name.rpartition("layers.")[2].partition(".")
                add(f"{side}.{block}.{names[part]}", weight, bias)
        for name, gain in graph.norms():
            block, _, part = name.rpartition("layers.")[2].partition(".")
            out[f"{side}.{block}.{norms[part]}" if part in norms else f"{side}.norm"] = gain
    out["encoder.norm"] = encoder.tensors["layer_norm.weight"]
    out["encoder.first"] = encoder.constant("conv1/Conv", 1)[:, 0]
    out["encoder.group_gain"] = encoder.constant("groupnorm/Mul", 1).reshape(SIZES.width)
    out["encoder.group_bias"] = encoder.constant("groupnorm/Add", 1).reshape(SIZES.width)
    for name, node in (("second", "conv2/Conv"), ("third", "conv3/Conv")):
        weight = encoder.constant(node, 1).transpose(0, 2, 1)  # (out, taps, in)
        add(f"encoder.{name}", weight.reshape(len(weight), -1), encoder.constant(node, 2), LARGEST_FILTER)
    return out


def main(wheel: Annotated[Path, typer.Argument(help=WHEEL)], to: Path = SHIPPED) -> None:
    """Write the weights and the list of symbols."""
    with open_wheel(wheel, WHEEL, SHA256) as files:
        graphs = [Graph(files.read(f"{FOLDER}/{name}.ort")) for name in ("encoder_model", "decoder_model_merged")]
        symbols = files.read(f"{FOLDER}/tokenizer.bin")
    tensors = converted(*graphs)
    tensors["text"] = np.frombuffer(symbols, np.uint8)
    write_atomically(to, save({name: np.array(values, order="C") for name, values in tensors.items()}))
    typer.echo(f"wrote {to}: {sum(values.nbytes for values in tensors.values()) / 1e6:.1f} MB")


if __name__ == "__main__":
    typer.run(main)
