"""Values that depend on the shapes of the inputs alone: computed once instead of at every step.

Exporters write shapes as nodes (Shape, Gather, Concat, …), and tables of positions as slices whose borders are such
values. They are computed for three numbers of rows. What is equal for all becomes a constant; a target of Reshape that
differs in the number of rows alone becomes -1 there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.graphs.onnx_graph import Node, OnnxGraph

ROWS = (2, 3, 5)
SIZED_BY_VALUES = frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression", "Loop", "If", "Scan"})
SIZED_BY_OPERANDS = frozenset(
    {"Reshape", "Slice", "Range", "Expand", "Tile", "ConstantOfShape", "Pad", "TopK", "OneHot"}
)
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def fold_shapes(graph: OnnxGraph) -> OnnxGraph:
    """Replace values that depend on shapes alone by constants; return the graph itself if it has none. Exact."""
    static = _static_values(graph)
    reshapes = [node for node in graph.nodes if node.op == "Reshape" and node.inputs[1] in static]
    wanted = [*dict.fromkeys(static), *(node.output for node in reshapes)]
    if not wanted:
        return graph
    runs = _values_of(graph, wanted)
    constants = {
        name: runs[0][name]
        for name in static
        if all(run[name].shape == runs[0][name].shape and np.array_equal(run[name], runs[0][name]) for run in runs)
    }
    targets = {node.output: _target(node, runs) for node in reshapes if node.inputs[1] not in constants}
    shapes = {f"{name}.target": target for name, target in targets.items() if target is not None}
    nodes = tuple(
        replace(node, inputs=(node.inputs[0], f"{node.output}.target")) if f"{node.output}.target" in shapes else node
        for node in graph.nodes
    )
    folded = replace(graph, nodes=nodes, constants={**graph.constants, **shapes}).with_constants(constants)
    return _without_zero_pads(folded)


def _static_values(graph: OnnxGraph) -> list[str]:
    """Return the names of all values that depend on constants and shapes alone."""
    static: dict[str, None] = {}
    sized_by_values: set[str] = set()
    for node in graph.nodes:
        known = [not name or name in static or name in graph.constants for name in node.inputs]
        operands = known if node.op in {"Range", "ConstantOfShape"} else known[1:]
        if (
            node.op in SIZED_BY_VALUES
            or (node.op in SIZED_BY_OPERANDS and not all(operands))
            or sized_by_values.intersection(node.inputs)
        ):
            sized_by_values.update(node.outputs)
        elif len(node.outputs) == 1 and node.op not in RANDOM and node.inputs and (node.op == "Shape" or all(known)):
            static[node.output] = None
    return list(static)


def _values_of(graph: OnnxGraph, names: Sequence[str]) -> list[Mapping[str, NDArray[Any]]]:
    """Compute these values for batches of zeros of `ROWS` rows."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = graph.session(options, names)

    def zeros(count: int) -> dict[str, NDArray[Any]]:
        return {
            value.name: np.zeros([size if isinstance(size, int) else count for size in value.shape], TYPES[value.type])
            for value in session.get_inputs()
        }

    return [dict(zip(names, session.run(list(names), zeros(count)), strict=True)) for count in ROWS]


def _target(node: Node, runs: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[np.int64] | None:
    """Return the target of a Reshape with -1 in the one place that follows the number of rows, or None."""
    shapes = [run[node.output].shape for run in runs]
    if len({len(shape) for shape in shapes}) != 1:
        return None
    differing = [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
    if len(differing) != 1 or 0 in shapes[0]:
        return None
    target = np.array(shapes[0], np.int64)
    target[differing] = -1
    return target


def _without_zero_pads(graph: OnnxGraph) -> OnnxGraph:
    """Leave out nodes that pad by nothing."""
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        pads = graph.ints(node.inputs[1]) if node.op == "Pad" and len(node.inputs) > 1 else None
        source = renamed.get(node.inputs[0], node.inputs[0]) if node.inputs else ""
        if pads is not None and not any(pads) and node.output not in graph.output_names:
            renamed[node.output] = source
        else:
            nodes.append(replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)))
    return replace(graph, nodes=tuple(nodes)).pruned()
