"""Keys and values of attention are cached after their projection instead of before it.

NeMo's graphs cache the input of attention, and project all cached frames to keys and values again at every step:
Concat(cache, x) -> MatMul -> Add. Here a step projects its own frames alone, the caches hold keys and values, and a
step returns its own frames alone. The frames of the cache that no step has written are masked, so that their values do
not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.published.onnx_graph import Edit, Node, OnnxGraph

CACHE, NEXT_CACHE = "cache_last_channel", "cache_last_channel_next"
KEYS_AND_VALUES = ("cache_key", "cache_value")


@dataclass(frozen=True, slots=True)
class _Layer:
    """Attention of a layer: (N, T, D) cached frames, (N, S, D) new ones, of which `kept` enter the cache."""

    number: int
    fresh: str
    kept: int
    projections: tuple[tuple[Node, Node | None], ...]  # product, and sum with the bias


def cache_keys_and_values(graph: OnnxGraph) -> OnnxGraph:
    """Cache keys and values of each layer as states (N, T, D) of their own, of which the new frames are returned.

    Keeps every bit. A graph without the pattern is returned as it is.
    """
    cache = next((each for each in graph.inputs if each.name == CACHE), None)
    if cache is None or NEXT_CACHE not in graph.output_names:
        return graph
    sizes = cache.type.tensor_type.shape.dim
    rows = sizes[0].dim_value or sizes[0].dim_param
    count, frames, width = (size.dim_value for size in sizes[1:])
    found = [_layer(graph, node) for node in graph.nodes if node.op == "Concat"]
    layers = sorted((each for each in found if each is not None), key=lambda each: each.number)
    if (
        not count
        or [each.number for each in layers] != list(range(count))
        or any(each.kept > frames for each in layers)
    ):
        return graph
    edit = Edit(graph, "key_value")
    inputs, outputs = [], []
    for layer in layers:
        for role, (product, biased) in zip(KEYS_AND_VALUES, layer.projections, strict=True):
            state = edit.input(f"{role}_{layer.number}", [rows, frames, width])
            new = edit("MatMul", layer.fresh, product.inputs[1])
            if biased is not None:
                new = edit("Add", *(new if name == product.output else name for name in biased.inputs))
            last = product if biased is None else biased
            edit.remove(product)
            edit("Concat", state, new, axis=1, output=last.output)
            borders = (edit.constant([value], "int64") for value in (0, layer.kept, 1))
            following = edit("Slice", new, *borders, output=f"{state}_next")
            edit.output(following, [rows, layer.kept, width])
            inputs.append(state)
            outputs.append(following)
    return edit.done(without=(CACHE, NEXT_CACHE))


def _layer(graph: OnnxGraph, joined: Node) -> _Layer | None:
    """Return the layer whose attention reads this Concat of cached and new frames, or None."""
    if len(joined.inputs) != 2 or joined.attributes.get("axis") not in (1, -2):
        return None
    number = _layer_number(graph, joined.inputs[0])
    readers = graph.consumers.get(joined.output, ())
    if number is None or len(readers) != 2 or any(reader.op != "MatMul" for reader in readers):
        return None
    if any(graph.constant(reader.inputs[1]) is None or reader.inputs[0] != joined.output for reader in readers):
        return None
    kept = _frames_kept(graph, joined)
    if kept is None:
        return None
    keys, values = sorted(readers, key=lambda each: _is_value(graph, each))
    return _Layer(number, joined.inputs[1], kept, ((keys, _bias(graph, keys)), (values, _bias(graph, values))))


def _layer_number(graph: OnnxGraph, cache: str) -> int | None:
    """Return the layer whose cached frames (N, T, D) are in a value, by its way from the input (N, L, T, D)."""
    gather = graph.producers.get(cache)
    if gather is None or gather.op != "Gather":
        return None
    source, axis = gather.inputs[0], gather.attributes.get("axis", 0)
    turned = graph.producers.get(source)
    if turned is not None and turned.op == "Transpose" and list(turned.attributes["perm"]) == [1, 0, 2, 3]:
        source, axis = turned.inputs[0], {0: 1, 1: 0}.get(axis)
    index = graph.number(gather.inputs[1])
    return int(index) if source == CACHE and axis == 1 and index is not None else None


def _frames_kept(graph: OnnxGraph, joined: Node) -> int | None:
    """Return how many new frames enter the cache: the next cache is Concat(cache[kept:], new[:kept])."""
    cache, fresh = joined.inputs
    for reader in graph.consumers[cache]:
        if reader is joined or reader.op == "Shape":
            continue
        after = graph.only_consumer(reader.output)
        if reader.op != "Slice" or after is None or after.op != "Concat" or after.inputs[0] != reader.output:
            return None
        other = graph.producers.get(after.inputs[1])
        start = graph.ints(reader.inputs[1])
        if other is None or start is None or len(start) != 1 or start[0] < 0 or graph.ints(reader.inputs[3]) != (1,):
            return None
        if other.op == "Slice" and other.inputs[0] == fresh:
            first, end, axes = (graph.ints(name) for name in other.inputs[1:4])
            return start[0] if (first, end, axes) == ((0,), start, (1,)) else None
        return start[0] if after.inputs[1] == fresh else None
    return None


def _bias(graph: OnnxGraph, product: Node) -> Node | None:
    """Return the sum with a constant that follows a product, or None."""
    reader = graph.only_consumer(product.output)
    if reader is None or reader.op != "Add":
        return None
    other = reader.inputs[1] if reader.inputs[0] == product.output else reader.inputs[0]
    return reader if graph.constant(other) is not None else None


def _is_value(graph: OnnxGraph, product: Node) -> bool:
    """Return whether a projection gives values, by the order of the heads: keys are transposed to (N, H, D, T)."""
    node: Node | None = _bias(graph, product) or product
    while node is not None and node.op in {"MatMul", "Add", "Reshape"}:
        node = graph.only_consumer(node.output)
    return node is not None and node.op == "Transpose" and list(node.attributes["perm"]) == [0, 2, 1, 3]
