"""Steps of a published graph with slots: gather the states, run the graph, scatter the states.

Inputs and outputs are bound to permanent memory once per number of rows, so that a step is one call of the runtime
without copies. Each thread has memory of its own and all run one session, which holds the weights once.
"""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.contracts import Contract, Feed, expected_inputs
from model.published.graphs.metadata import Graph
from model.published.states import SlotStates

DIVIDED = (3, 8)
"""Batch sizes at which divided rows are compared: parts of one row and of several, with and without a remainder."""
ELEMENTS = {"tensor(float)": np.float32, "tensor(int32)": np.int32}


class GraphSlots:
    """A graph with the states of its streams in slots; the rows of a batch are divided among threads."""

    def __init__(
        self,
        graph: Graph,
        contract: Contract,
        result: tuple[int, ...],
        *,
        capacity: int,
        largest: int,
        least: int = 1,
        threads: int = 1,
    ) -> None:
        """`result`: shape of one row's result as the graph returns it; `result_shape` has the frames that are kept.

        Batches below `least` rows are padded with a scratch row.
        More than one of `threads` gives the same bits only if `why_undivided` has no reason.
        """
        self.result_shape = result if contract.kept is None else (*result[:-1], contract.kept[1])
        self._least = 1 if contract.one_row else least
        self.largest = 1 if contract.one_row else max(largest, self._least)
        self._threads = 1 if contract.one_row else min(threads, capacity)
        self.states = SlotStates(contract.states, capacity=capacity + 1)
        most = max(-(-rows // self._parts(rows)) for rows in range(self._least, self.largest + 1))
        self._runs = [
            BoundGraph(graph, contract, result, self.states, scratch=capacity, largest=most, least=self._least)
            for _ in range(self._threads)
        ]
        self._pool = ThreadPoolExecutor(self._threads - 1, "graph") if self._threads > 1 else None

    def run(
        self, slots: NDArray[np.int64], windows: NDArray[Any], prompts: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Step the streams in these slots by one window, (R, L, F) or (R, S, 1). Returns: (R, …) in new memory.

        `prompts`: numbers of their languages, (R,); None: 0.
        """
        prompts = np.zeros(len(slots), np.int64) if prompts is None else prompts
        results = np.empty((len(slots), *self.result_shape), np.float32)
        parts = self._parts(len(slots))
        if self._pool is None or parts == 1:
            self._runs[0].run(slots, windows, prompts, results)
            return results
        borders = [len(slots) * part // parts for part in range(parts + 1)]
        pieces = [slice(first, last) for first, last in itertools.pairwise(borders)]
        others = [
            self._pool.submit(run.run, slots[piece], windows[piece], prompts[piece], results[piece])
            for run, piece in zip(self._runs[1:], pieces[1:], strict=False)
        ]
        try:
            first = pieces[0]
            self._runs[0].run(slots[first], windows[first], prompts[first], results[first])
        finally:
            wait(others)  # before the next batch uses their memory
        for other in others:
            other.result()
        return results

    def feeds(self, rows: int) -> dict[str, NDArray[Any]]:
        """Inputs of a batch of this many rows, by name; always the same memory, that of the first thread."""
        return self._runs[0].feeds(rows)

    def _parts(self, rows: int) -> int:
        """Number of threads for a batch: each has at least `least` rows."""
        return max(1, min(self._threads, rows // self._least))


class BoundGraph:
    """The graph with memory of its own for inputs, outputs and gathered states: what one thread runs."""

    def __init__(
        self,
        graph: Graph,
        contract: Contract,
        result: tuple[int, ...],
        states: SlotStates,
        *,
        scratch: int,
        largest: int,
        least: int,
    ) -> None:
        """`scratch`: a slot that is always in its initial state, for rows that pad a batch to `least`."""
        self._graph, self._contract = graph, contract
        self._scratch, self._largest, self._least = scratch, largest, least
        self._states = states.batched(largest)
        kind, shape = next(
            window for window, feed in zip(expected_inputs(contract), contract.feeds, strict=True) if feed in _WINDOWS
        )
        self._window = np.zeros((largest, *(size for size in shape[1:] if size is not None)), ELEMENTS[kind])
        self._result = np.zeros((largest, *result), np.float32)
        first, count = contract.kept or (0, None)
        self._kept = self._result if count is None else self._result[..., first : first + count]
        self._lengths = np.full(largest, contract.window, np.int64)
        self._prompts = np.zeros(largest, np.int64)
        self._bound = functools.lru_cache(maxsize=None)(self._bind)

    def run(
        self,
        slots: NDArray[np.int64],
        windows: NDArray[Any],
        prompts: NDArray[np.int64],
        results: NDArray[np.float32],
    ) -> None:
        """Step the streams in these slots by one window, (R, L, F) or (R, S, 1), and fill `results`, (R, …)."""
        for first in range(0, len(slots), self._largest):
            members = slots[first : first + self._largest]
            count = len(members)
            part = windows[first : first + count]
            self._window[:count] = part.transpose(0, 2, 1) if "bins first" in self._contract.feeds else part
            self._prompts[:count] = prompts[first : first + count]
            rows = max(count, self._least)
            self._window[count:rows] = 0
            self._states.gather(np.append(members, [self._scratch] * (rows - count)) if rows > count else members)
            self._graph.session.run_with_iobinding(self._bound(rows))
            self._states.scatter(members, rows)
            results[first : first + count] = self._kept[:count]

    def _feed(self, feed: Feed, rows: int, states: list[NDArray[Any]]) -> NDArray[Any]:
        match feed:
            case "window" | "bins first":
                return self._window[:rows]
            case "length":
                return self._lengths[:rows]
            case "prompt":
                return self._prompts[:rows]
            case "state":
                return states.pop(0)

    def feeds(self, rows: int) -> dict[str, NDArray[Any]]:
        """Inputs of a batch of this many rows, by name; always the same memory."""
        before = self._states.before(rows)
        pairs = zip(self._graph.inputs, self._contract.feeds, strict=True)
        return {declared.name: self._feed(feed, rows, before) for declared, feed in pairs}

    def _bind(self, rows: int) -> Any:
        """Return the runtime's binding for a batch of this many rows."""
        binding = self._graph.session.io_binding()
        after = self._states.after(rows)
        for name, array in self.feeds(rows).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        names = list(self._graph.outputs)
        result = self._result[:rows]
        binding.bind_output(names[0], "cpu", 0, np.float32, result.shape, result.ctypes.data)
        for name in names[1 : 1 + self._contract.ignored]:
            binding.bind_output(name, "cpu")
        for name, array in zip(names[1 + self._contract.ignored :], after, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        return binding


_WINDOWS: tuple[Feed, ...] = ("window", "bins first")


def least_rows(graph: Graph, contract: Contract, result: tuple[int, ...]) -> int:
    """Smallest batch from which a row's bits do not depend on the batch size: 1, or 2 if one row uses another kernel.

    2 also means that rows of larger batches agree; if they do not, padding would not help, and the result is 1.
    """
    if contract.one_row:
        return 1
    slots = GraphSlots(graph, contract, result, capacity=3, largest=3)
    windows = _noise(contract, 3)

    def row_of(rows: int) -> bytes:
        """Return results and state of the first row after two windows, in a batch of this many rows."""
        for slot in range(rows):
            slots.states.reset(slot)
        results = [slots.run(np.arange(rows), window[:rows])[0].tobytes() for window in windows]
        return b"".join(results) + slots.states.export(0)

    alone, of_two = row_of(1), row_of(2)
    return 2 if alone != of_two and of_two == row_of(3) else 1


def why_undivided(graph: Graph, contract: Contract, result: tuple[int, ...], *, least: int, threads: int) -> str:
    """Return why the rows of a batch must not be divided among threads, or an empty string.

    Two windows of noise are run in batches of `DIVIDED` rows, with one thread and with all: each bit must be the same.
    """
    if contract.one_row:
        return "the graph has one row"
    largest = max(DIVIDED)
    noise = _noise(contract, largest)

    def outcome(count: int, rows: int) -> bytes:
        """Return results and states of all rows after two windows."""
        slots = GraphSlots(graph, contract, result, capacity=largest, largest=largest, least=least, threads=count)
        results = [slots.run(np.arange(rows), window[:rows]).tobytes() for window in noise]
        return b"".join([*results, *map(slots.states.export, range(rows))])

    if any(outcome(1, rows) != outcome(threads, rows) for rows in DIVIDED):
        return "a row's bits depend on the number of rows"
    return ""


def _noise(contract: Contract, rows: int) -> NDArray[Any]:
    """Return two windows of noise for each of these rows, (2, B, …)."""
    dice = np.random.default_rng(1)
    values = dice.standard_normal((2, rows, *contract.window_shape))
    return np.asarray(values * 1_000, np.int32) if contract.fbank is None else np.asarray(values * 3, np.float32)


def check_graph(graph: Graph, contract: Contract) -> tuple[int, ...]:
    """Check a graph against its contract and run one window of silence. Returns: shape of one row's result.

    Raises: PublishedModelError.
    """
    graph.check_inputs(expected_inputs(contract))
    graph.need_outputs(1 + contract.ignored + len(contract.states))
    silence = GraphSlots(graph, contract, (), capacity=1, largest=1)
    outputs = graph.try_out("a window of silence", *silence.feeds(1).values())
    returned = outputs[1 + contract.ignored :]
    for number, (tensor, state) in enumerate(zip(returned, contract.states, strict=True)):
        if tensor.shape != state.batched(1) or tensor.dtype != state.dtype:
            raise PublishedModelError(
                f"{graph.path.name}: next state {number} is {tensor.dtype} {list(tensor.shape)}, "
                f"but its input is {state.dtype} {list(state.batched(1))}"
            )
    if outputs[0].ndim != 3 or outputs[0].dtype != np.float32 or len(outputs[0]) != 1:
        raise PublishedModelError(
            f"{graph.path.name}: output 0 is {outputs[0].dtype} {list(outputs[0].shape)}, not frames of floats"
        )
    if contract.kept is not None and outputs[0].shape[-1] < (needed := sum(contract.kept)):
        raise PublishedModelError(
            f"{graph.path.name}: output 0 has {outputs[0].shape[-1]} frames, by its metadata it should have {needed}"
        )
    return tuple(outputs[0].shape[1:])
