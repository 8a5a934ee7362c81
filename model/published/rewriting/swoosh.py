"""The activations of zipformers, Swoosh-L and Swoosh-R: log(1 + exp(x - c)) - 0.08 x - k, in fewer nodes.

Exporters write the logarithm as Log(Exp(x - c) + Exp(0)) with the case of an overflow, or as
Max(x - c, 0) + Log(1 + Exp(-|x - c|)). Here it is Max(Log(1 + Exp(Min(y, 80))), y): without the minimum, Exp overflows.
Source: Yao et al. 2023, https://arxiv.org/abs/2310.11230.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.published.onnx_graph import Edit, Node, OnnxGraph

LARGEST_EXPONENT = 80.0


@dataclass(frozen=True, slots=True)
class _Swoosh:
    """log(1 + exp(y)) - slope * x - offset of x, with y = x - shift."""

    x: str
    y: str
    shift: float
    slope: float
    offset: float
    output: str


def simplify_swoosh(graph: OnnxGraph) -> OnnxGraph:
    """Replace each Swoosh. Rounds."""
    edit = Edit(graph, "swoosh")
    largest, one = edit.constant(LARGEST_EXPONENT), edit.constant(1.0)
    for node in graph.nodes:
        if (found := _swoosh(graph, node)) is None:
            continue
        softplus = edit("Log", edit("Add", edit("Exp", edit("Min", found.y, largest)), one))
        curve = edit("Sub", edit("Max", softplus, found.y), edit("Mul", found.y, edit.constant(found.slope)))
        edit("Sub", curve, edit.constant(found.offset + found.slope * found.shift), output=found.output)
    return edit.done() if edit.changed else graph


def _swoosh(graph: OnnxGraph, last: Node) -> _Swoosh | None:
    """Return the Swoosh that ends with this node, Sub(Sub(softplus, Mul(x, slope)), offset), or None."""
    offset = graph.number(last.inputs[1]) if last.op == "Sub" else None
    inner = graph.producers.get(last.inputs[0]) if offset is not None else None
    if inner is None or inner.op != "Sub":
        return None
    sloped = graph.producers.get(inner.inputs[1])
    if sloped is None or sloped.op != "Mul":
        return None
    x, slope = _with_number(graph, sloped)
    shifted = _softplus(graph, inner.inputs[0])
    if slope is None or shifted is None or offset is None:
        return None
    y, shift = shifted, graph.number(shifted.inputs[1])
    if y.op == "Add" and shift is not None:
        shift = -shift
    return None if shift is None or y.inputs[0] != x else _Swoosh(x, y.output, shift, slope, offset, last.output)


def _softplus(graph: OnnxGraph, name: str) -> Node | None:
    """Return the node of y if a value is log(1 + exp(y)) in one of the exporters' forms, or None."""
    node = _uncast(graph, name)
    if node is None:
        return None
    if node.op == "Where":  # the sum where it is finite, else y
        y, logs = graph.producers.get(node.inputs[1]), _uncast(graph, node.inputs[2])
        test = _uncast(graph, node.inputs[0])
        found = None if logs is None else _exponent(graph, logs)
        compared = test is not None and test.op in {"Equal", "IsInf"}
        return y if y is not None and found is y and compared else None
    if node.op == "Log":
        return _exponent(graph, node)
    if node.op != "Add":
        return None
    for highest, logarithm in (node.inputs, node.inputs[::-1]):
        top, log = graph.producers.get(highest), _uncast(graph, logarithm)
        if top is None or log is None or top.op != "Max" or log.op != "Log":
            continue
        negative = _exponent(graph, log)
        absolute = graph.producers.get(negative.inputs[0]) if negative is not None and negative.op == "Neg" else None
        name = next((each for each in top.inputs if graph.number(each) != 0.0), "")
        y = graph.producers.get(name)
        if absolute is None or absolute.op != "Abs" or y is None:
            continue
        if name in _without_zero(graph, absolute.inputs[0]):
            return y
    return None


def _exponent(graph: OnnxGraph, log: Node) -> Node | None:
    """Return the node of y of Log(1 + Exp(y)), or None."""
    total = graph.producers.get(log.inputs[0]) if log.op == "Log" else None
    if total is None or total.op != "Add":
        return None
    name, one = _with_number(graph, total)
    power = graph.producers.get(name)
    return graph.producers.get(power.inputs[0]) if one == 1.0 and power is not None and power.op == "Exp" else None


def _without_zero(graph: OnnxGraph, name: str) -> set[str]:
    """Return names whose values are equal to a value up to the sign: y, and the y of y - 0 or 0 - y."""
    node = graph.producers.get(name)
    found = {name}
    if node is not None and node.op == "Sub":
        found |= {each for each in node.inputs if graph.number(each) is None}
        if not any(graph.number(each) == 0.0 for each in node.inputs):
            found = {name}
    return found


def _with_number(graph: OnnxGraph, node: Node) -> tuple[str, float | None]:
    """Return the variable input and the constant one of a node with two inputs."""
    first, second = node.inputs
    number = graph.number(second)
    return (first, number) if number is not None else (second, graph.number(first))


def _uncast(graph: OnnxGraph, name: str) -> Node | None:
    """Return the producer of a value, past a Cast."""
    node = graph.producers.get(name)
    while node is not None and node.op == "Cast":
        node = graph.producers.get(node.inputs[0])
    return node
