"""Which rewrites a graph gets: each is tried in turn, compared with the graph before it, and undone if it differs.

A rewrite that keeps every bit must do so over speech, alone and in a batch; one that rounds must keep every symbol and
stay within a thousandth. The verdicts are cached with the graph, so that later loads apply them without comparing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.lm.cache import cache_dirs
from model.machine.instructions import instruction_set
from model.published.contracts import FLOAT, Contract, expected_inputs
from model.published.dequantized import dequantized
from model.published.folding import fold_shapes
from model.published.metadata import Graph
from model.published.onnx_graph import OnnxGraph
from model.published.rewriting.key_value_caches import KEYS_AND_VALUES, cache_keys_and_values
from model.published.rewriting.pointwise import pointwise_as_products
from model.published.rewriting.verdicts import Rewriting, Verdict, cached, keep
from model.published.rewriting.verification import Outcome, compare, outcome_of
from model.published.states import StateTensor

VERSION = 3  # of the rewrites: part of the digest of a rewritten model, and of the cache
LARGEST_BYTES = 1 << 30  # of a graph: beyond, a copy in memory could exceed the 2 GiB of a message


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite: its name, whether it keeps every bit, and the function; an unchanged graph means: nothing found."""

    name: str
    exact: bool
    apply: Callable[[OnnxGraph], OnnxGraph]


REWRITES = (
    Rewrite("shapes folded", True, fold_shapes),
    Rewrite("keys and values cached", True, cache_keys_and_values),
    Rewrite("pointwise convolutions as products", False, pointwise_as_products),
)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The graph to run, its contract, and the verdicts."""

    graph: Graph
    contract: Contract
    verdicts: tuple[Verdict, ...]
    published: Contract  # of the graph before the rewrites
    source: OnnxGraph | None = None  # of the graph to run; None if it was not read

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the applied rewrites."""
        return tuple(verdict.name for verdict in self.verdicts if verdict.applied)

    def digest(self, files: str) -> str:
        """Return the digest of the model: that of its files, changed by the applied rewrites. It identifies tickets."""
        if not self.applied:
            return files
        return hashlib.sha256("\n".join((files, str(VERSION), *self.applied)).encode()).hexdigest()


def rewritten(
    graph: Graph,
    contract: Contract,
    shape: tuple[int, ...],
    windows: Callable[[], NDArray[Any]],
    *,
    rewriting: Rewriting = "auto",
    digest: str,
    from_integers: bool = False,
) -> Rewritten:
    """Return the graph with all rewrites that keep its results; `digest`: of its files.

    `from_integers`: of a file in 8 bits, `graph` is its form in floats.

    `windows`: feature windows (W, B, …) of speech, of which the results `shape` are compared; needed if no verdicts are
    cached. A graph that cannot be rewritten is returned as it is, with the reason.
    """
    rewrites = REWRITES if rewriting == "auto" else ()
    try:
        source = read_graph(graph.path, contract, from_integers=from_integers) if rewrites else None
    except PublishedModelError as error:
        verdicts = tuple(Verdict(each.name, each.exact, False, str(error)) for each in rewrites)
        return Rewritten(graph, contract, verdicts, contract)
    if source is None:
        return Rewritten(graph, contract, (), contract)
    places = places_of(graph.path, rewriting, f"{digest} {VERSION}")
    known = cached(places)
    if known is None:
        speech = windows()
        found = _tried(graph, contract, source, rewrites, lambda one, its: outcome_of(one, its, shape, speech))
        keep(places, found.verdicts)
        return found
    applied = {each.name for each in known if each.applied}
    for rewrite in rewrites:
        if rewrite.name in applied:
            source = rewrite.apply(source)
    if not applied:
        return Rewritten(graph, contract, known, contract, source)
    return Rewritten(_session(graph, source), contract_of(source, contract), known, contract, source)


def contract_of(source: OnnxGraph, contract: Contract) -> Contract:
    """Return the contract of a rewritten graph: NeMo's cached frames may have become keys and values."""
    caches = [each for each in source.inputs if each.name.startswith(KEYS_AND_VALUES)]
    if not caches:
        return contract
    frames, width = (size.dim_value for size in caches[0].type.tensor_type.shape.dim[1:])
    appended = source.outputs[-1].type.tensor_type.shape.dim[1].dim_value
    states = (*contract.states[1:], *[StateTensor((frames, width), FLOAT, appended=appended)] * len(caches))
    feeds = (*contract.feeds[:2], *["state" for _ in states])
    return replace(contract, states=states, feeds=feeds)  # type: ignore[arg-type]


def _tried(
    graph: Graph,
    contract: Contract,
    source: OnnxGraph,
    rewrites: Sequence[Rewrite],
    run: Callable[[Graph, Contract], Outcome],
) -> Rewritten:
    """Apply each rewrite that keeps the outcome of `run`."""
    encoder = graph.path.name.startswith("encoder")
    verdicts: list[Verdict] = []
    before = run(graph, contract)
    kept = graph, contract
    for rewrite in rewrites:

        def refused(reason: str, largest: float = 0.0, *, rewrite: Rewrite = rewrite) -> None:
            verdicts.append(Verdict(rewrite.name, rewrite.exact, False, reason, largest))

        try:
            changed = rewrite.apply(source)
            if changed is source:
                refused("nothing to rewrite was found")
                continue
            candidate = _session(graph, changed), contract_of(changed, contract)
            after = run(*candidate)
        except Exception as error:  # noqa: BLE001  of ONNX Runtime, which has no type of its own
            refused(f"the result does not run: {_first_line(error)}")
            continue
        found = compare(before, after, encoder=encoder)
        if rewrite.exact and not found.bits:
            refused("a bit of the results differs", found.largest)
        elif not rewrite.exact and not found.tolerable:
            refused("the results differ too much", found.largest)
        else:
            verdicts.append(Verdict(rewrite.name, rewrite.exact, True, "", found.largest))
            source, kept = changed, candidate
    return Rewritten(*kept, tuple(verdicts), contract, source)


def read_graph(path: Path, contract: Contract, *, from_integers: bool = False) -> OnnxGraph:
    """Read a graph file; its inputs get the sizes of the contract. `from_integers`: in floats if it is in 8 bits.

    Raises: PublishedModelError with the reason why it cannot be rewritten.
    """
    if path.stat().st_size > LARGEST_BYTES:
        raise PublishedModelError("it is larger than 1 GiB")
    model = onnx.load(path, load_external_data=False)
    if any(each.data_location == onnx.TensorProto.EXTERNAL for each in model.graph.initializer):
        raise PublishedModelError("its weights are in a file of their own")
    source = OnnxGraph.read(model)
    if from_integers:
        source = dequantized(source)
    if any(node.op in {"DynamicQuantizeLinear", "QuantizeLinear"} for node in source.nodes):
        raise PublishedModelError("it is quantized")
    return source.with_sizes([shape for _, shape in expected_inputs(contract)])


def in_floats(graph: Graph) -> Graph:
    """Return the form in floats of a graph in 8 bits. Raises: PublishedModelError."""
    return _session(graph, dequantized(OnnxGraph.read(onnx.load(graph.path, load_external_data=False))))


def _session(graph: Graph, source: OnnxGraph) -> Graph:
    return Graph.of(graph.path, source.proto().SerializeToString())


def places_of(path: Path, purpose: str, subject: str) -> list[Path]:
    """Return the files in which verdicts may be kept.

    They depend on the subject, the rewrites, the runtime and the processor.
    """
    parts = subject, onnxruntime.__version__, instruction_set()
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return [folder / f"{path.name}-{purpose}-{key}.rewriting.json" for folder in cache_dirs(path)]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
