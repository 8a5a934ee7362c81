"""Builder of ONNX graphs: nodes named in order, weights drawn from one seed, a batch axis of any length.

It knows nothing of speech models; the other modules of this package add the nodes. Shapes are written with "N" for
the batch axis. An operand is the name of a value, or a number or list that becomes a constant.
"""

from __future__ import annotations

import numpy as np

from tests.support.needs import need_package

onnx = need_package("onnx")  # tests that import probes are skipped without it

OPSET = 17
IR_VERSION = 8  # supported by the runtime in older releases of sherpa-onnx
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
TYPES = {"float32": FLOAT, "float16": FLOAT16, "int64": onnx.TensorProto.INT64}
TYPES |= {"int32": onnx.TensorProto.INT32, "bool": onnx.TensorProto.BOOL}


class Graph:
    """Builder of one model file."""

    def __init__(self, name, seed=0, *, quantized=False):
        self.name = name
        self.random = np.random.default_rng(seed)
        self.quantized = quantized  # whether `linear` uses products of bytes
        self.nodes, self.inputs, self.outputs, self.initializers = [], [], [], {}
        self.states = []  # pairs (input name, output name)

    def __call__(self, op, *operands, outputs=1, **attributes):
        """Add a node; return the name of its output, or a list of names if there are several."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        operands = [self.operand(operand) for operand in operands]
        self.nodes.append(onnx.helper.make_node(op, operands, names, **attributes))
        return names[0] if outputs == 1 else names

    def operand(self, value):
        """Return the name of a value; a constant is added for anything else."""
        if isinstance(value, str):
            return value
        return self.constant(value)

    def constant(self, array, name=None):
        name = name or f"c{len(self.initializers)}"
        array = np.asarray(array)
        self.initializers[name] = array.astype(np.float32) if array.dtype == np.float64 else array
        return name

    def weight(self, *shape, scale=None):
        """Add normal random numbers; by default their product with unit values is of unit size."""
        fan_in = shape[-2] if len(shape) > 1 else 1
        scale = fan_in**-0.5 if scale is None else scale
        return self.constant(scale * self.random.standard_normal(shape, dtype=np.float32))

    def input(self, name, shape, dtype="float32"):
        self.inputs.append(onnx.helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, value, name, shape, dtype="float32"):
        """Declare a value as an output with a published name."""
        self.nodes.append(onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(onnx.helper.make_tensor_value_info(name, TYPES[dtype], shape))

    def model(self, metadata):
        """Return the ONNX model with this metadata."""
        tensors = [onnx.numpy_helper.from_array(array, name) for name, array in self.initializers.items()]
        graph = onnx.helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, tensors)
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        onnx.helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
        return model

    def save(self, path, metadata):
        onnx.save(self.model(metadata), path)

    def linear(self, x, rows, columns, scale=None):
        """Multiply x (..., rows) by random weights (rows, columns); in bytes if the graph is quantized."""
        weight = self.weight(rows, columns, scale=scale)
        if not self.quantized:
            return self("MatMul", x, weight)
        floats = self.initializers.pop(weight)
        step = np.float32(np.abs(floats).max() / 127)
        # one scale and zero point of x for the whole batch, which makes rows depend on one another
        byte, x_step, x_zero = self("DynamicQuantizeLinear", x, outputs=3)
        products = self("MatMulInteger", byte, np.round(floats / step).astype(np.int8), x_zero, np.int8(0))
        return self("Mul", self("Cast", products, to=FLOAT), self("Mul", x_step, step))

    def slice(self, x, start, end, axis):
        return self("Slice", x, [start], [end], [axis])

    def last(self, x, count, axis):
        """Return the newest `count` entries of an axis: the next state of a shifting cache."""
        return self.slice(x, -count, np.iinfo(np.int64).max, axis)

    def total(self, *values):
        result = values[0]
        for value in values[1:]:
            result = self("Add", result, value)
        return result
