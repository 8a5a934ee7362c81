"""An ONNX graph as an immutable value: nodes, constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from model.errors import PublishedModelError

ROWS = "rows"  # name of the batch axis
LEAST_BYTES = 1024  # of constants that a session gets in memory; it needs smaller ones, such as shapes, in the graph


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation. Inputs and outputs are names of values; an optional input that is left out is ''."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""

    @property
    def output(self) -> str:
        """The first output."""
        return self.outputs[0]


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """Nodes in execution order; constants by name; declared inputs and outputs as in the file."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[Any, ...]  # onnx.ValueInfoProto
    outputs: tuple[Any, ...]
    opsets: tuple[Any, ...]
    metadata: Mapping[str, str]
    ir_version: int

    @classmethod
    def read(cls, model: Any, weights: Mapping[str, NDArray[Any]] = MappingProxyType({})) -> OnnxGraph:
        """Read an `onnx.ModelProto`, of which `weights` are elsewhere.

        Raises: PublishedModelError for graphs with branches, loops or functions.
        """
        from onnx import helper, numpy_helper

        graph = model.graph
        constants = {
            each.name: weights[each.name] if each.name in weights else numpy_helper.to_array(each)
            for each in graph.initializer
        }
        nodes: list[Node] = []
        if model.functions or graph.sparse_initializer:
            raise PublishedModelError("it has functions or sparse weights")
        for each in graph.node:
            if any(part.HasField("g") or part.graphs for part in each.attribute):
                raise PublishedModelError(f"it has a node {each.op_type} with graphs of its own")
            if each.op_type == "Constant" and each.attribute[0].name == "value":
                constants[each.output[0]] = numpy_helper.to_array(each.attribute[0].t)
            elif each.op_type == "Identity" and each.input[0] in constants:
                constants[each.output[0]] = constants[each.input[0]]
            else:
                attributes = {part.name: helper.get_attribute_value(part) for part in each.attribute}
                nodes.append(Node(each.op_type, tuple(each.input), tuple(each.output), attributes, each.domain))
        return cls(
            tuple(nodes),
            constants,
            tuple(graph.input),
            tuple(graph.output),
            tuple(model.opset_import),
            {metadata_prop.key: metadata_prop.value for metadata_prop in model.metadata_props},
            model.ir_version,
        )

    def proto(self, extra_outputs: Iterable[str] = (), *, weights: bool = True) -> Any:
        """Return the graph as an `onnx.ModelProto`; `extra_outputs` are names of values to return as well.

        Without `weights`, it refers to `large_constants` as external data.
        """
        from onnx import helper, numpy_helper

        used = self.needed([*extra_outputs])
        apart = {} if weights else self.large_constants
        nodes = [
            helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain, **node.attributes)
            for node in self.nodes
            if used.intersection(node.outputs)
        ]
        tensors = [
            _reference(name, value) if name in apart else numpy_helper.from_array(value, name)
            for name, value in self.constants.items()
            if name in used
        ]
        outputs = [*self.outputs, *(helper.make_empty_tensor_value_info(name) for name in extra_outputs)]
        model = helper.make_model(
            helper.make_graph(nodes, "rewritten", self.inputs, outputs, tensors),
            opset_imports=self.opsets,
            ir_version=self.ir_version,
        )
        helper.set_model_props(model, dict(self.metadata))
        return model

    def session(self, options: Any, extra_outputs: Iterable[str] = ()) -> Any:
        """Return a session of ONNX Runtime on the CPU, which uses the constants where they are.

        `options`: its `SessionOptions`.
        """
        import onnxruntime  # which most models do not need

        values = [onnxruntime.OrtValue.ortvalue_from_numpy(constant) for constant in self.large_constants.values()]
        options.add_external_initializers(list(self.large_constants), values)
        options.add_session_config_entry("session.disable_prepacking", "1")  # it would copy them
        content = self.proto(extra_outputs, weights=False).SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    @cached_property
    def large_constants(self) -> Mapping[str, NDArray[Any]]:
        """Constants that a session gets in memory, by name."""
        return {name: value for name, value in self.constants.items() if value.nbytes >= LEAST_BYTES}

    def needed(self, further: Sequence[str] = ()) -> set[str]:
        """Return the names of all values on which the outputs and the `further` values depend."""
        names: set[str] = {*self.output_names, *further}
        for node in reversed(self.nodes):
            if names.intersection(node.outputs):
                names.update(node.inputs)
        return names

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return tuple(declared.name for declared in self.outputs)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node of each value that a node computes."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[Node]]:
        """The nodes that read a value, for each value that is read."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return readers

    def only_consumer(self, name: str) -> Node | None:
        """Return the only node that reads a value; None if there are several, or if the value is an output."""
        readers = self.consumers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.output_names else None

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant, or None."""
        return self.constants.get(name)

    def number(self, name: str) -> float | None:
        """Return the value of a constant with one element, or None."""
        value = self.constants.get(name)
        return None if value is None or value.size != 1 else float(value.reshape(()))

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Return a constant of integers as numbers, or None."""
        value = self.constants.get(name)
        return None if value is None or value.dtype.kind != "i" else tuple(value.reshape(-1).tolist())

    def with_sizes(self, shapes: Sequence[Sequence[int | None]]) -> OnnxGraph:
        """Return the graph with these sizes of its inputs, by position; None stands for the number of rows."""
        from onnx import helper

        inputs = tuple(
            helper.make_tensor_value_info(
                declared.name,
                declared.type.tensor_type.elem_type,
                [
                    size if size is not None else old.dim_value or ROWS
                    for size, old in zip(shape, sizes_of(declared), strict=True)
                ],
            )
            for declared, shape in zip(self.inputs, shapes, strict=True)
        )
        return replace(self, inputs=inputs)

    def with_constants(self, values: Mapping[str, NDArray[Any]]) -> OnnxGraph:
        """Return the graph with these values as constants; the nodes that computed them are left out."""
        nodes = tuple(node for node in self.nodes if not set(node.outputs) & values.keys())
        return replace(self, nodes=nodes, constants={**self.constants, **values}).pruned()

    def pruned(self) -> OnnxGraph:
        """Return the graph without nodes and constants that no output depends on."""
        used = self.needed()
        return replace(
            self,
            nodes=tuple(node for node in self.nodes if used.intersection(node.outputs)),
            constants={name: value for name, value in self.constants.items() if name in used},
        )


def _reference(name: str, value: NDArray[Any]) -> Any:
    """Return a tensor whose values are elsewhere."""
    from onnx import TensorProto, helper

    tensor = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
        dims=value.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="memory")
    return tensor


def sizes_of(declared: Any) -> Any:
    """Return the axes of a declared input or output."""
    return declared.type.tensor_type.shape.dim
