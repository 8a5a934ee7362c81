"""Steps of a published graph with slots: gather the states, run the graph, scatter the states.

Inputs and outputs are bound to permanent memory once per number of rows, so that a step is one call of the runtime
without copies.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.contracts import WENET_CHUNK, Contract, Feed, expected_inputs
from model.published.filter_bank import BINS
from model.published.metadata import Graph
from model.published.states import SlotStates

ELEMENTS = {"tensor(float)": np.float32, "tensor(int32)": np.int32}


class GraphSlots:
    """A graph with the states of its streams in slots."""

    def __init__(
        self, graph: Graph, contract: Contract, result: tuple[int, ...], *, capacity: int, largest: int, least: int = 1
    ) -> None:
        """`result`: shape of one stream's result. Batches below `least` rows are padded with a scratch row."""
        self._graph, self._contract, self.result_shape = graph, contract, result
        self._least = 1 if contract.one_row else least
        self.largest = 1 if contract.one_row else max(largest, self._least)
        self._scratch = capacity  # an additional slot, always in its initial state
        self.states = SlotStates(contract.states, capacity=capacity + 1, largest=self.largest)
        rows = self.largest
        kind, shape = next(
            each for each, feed in zip(expected_inputs(contract), contract.feeds, strict=True) if feed in _WINDOWS
        )
        self._window = np.zeros((rows, *(size for size in shape[1:] if size is not None)), ELEMENTS[kind])
        self._result = np.zeros((rows, *result), np.float32)
        self._lengths = np.full(rows, contract.window, np.int64)
        self._cached = np.full(rows, contract.cached_frames, np.int64)
        self._mask = np.zeros((1, 1, contract.cached_frames + WENET_CHUNK), np.bool_)
        self._mask[..., contract.cached_frames :] = True
        self._bound = functools.lru_cache(maxsize=None)(self._bind)

    def run(self, slots: NDArray[np.int64], windows: NDArray[Any]) -> NDArray[np.float32]:
        """Step the streams in these slots by one window, (R, L, 80) or (R, S, 1). Returns: (R, …) in new memory."""
        results = np.empty((len(slots), *self.result_shape), np.float32)
        for first in range(0, len(slots), self.largest):
            members = slots[first : first + self.largest]
            count = len(members)
            part = windows[first : first + count]
            self._window[:count] = part.transpose(0, 2, 1) if "bins first" in self._contract.feeds else part
            rows = max(count, self._least)
            self._window[count:rows] = 0
            self.states.gather(np.append(members, [self._scratch] * (rows - count)) if rows > count else members)
            self._compute(rows)
            self.states.scatter(members, rows)
            results[first : first + count] = self._result[:count]
        return results

    def _compute(self, rows: int) -> None:
        offsets = "offset" in self._contract.feeds
        if offsets:
            self._see_cached_frames(int(self.states.before(rows)[-1][0]))
        self._graph.session.run_with_iobinding(self._bound(rows))
        if offsets:  # the graph does not count the frames before the next chunk
            self.states.after(rows)[-1][:] = self.states.before(rows)[-1] + self.result_shape[0]

    def _see_cached_frames(self, offset: int) -> None:
        """Mask the missing left context of the first chunks."""
        chunks = offset // WENET_CHUNK - self._contract.cached_frames // WENET_CHUNK
        missing = max(0, self._contract.cached_frames - chunks * WENET_CHUNK)
        self._mask[..., :missing] = False
        self._mask[..., missing:] = True

    def _feed(self, feed: Feed, rows: int, states: list[NDArray[Any]]) -> NDArray[Any]:
        match feed:
            case "window" | "bins first":
                return self._window[:rows]
            case "length":
                return self._lengths[:rows]
            case "state":
                return states.pop(0)
            case "offset":
                return states[-1]
            case "cache size":
                return self._cached[:rows]
            case "mask":
                return self._mask

    def feeds(self, rows: int) -> dict[str, NDArray[Any]]:
        """Inputs of a batch of this many rows, by name; always the same memory."""
        before = self.states.before(rows)
        pairs = zip(self._graph.inputs, self._contract.feeds, strict=True)
        return {declared.name: self._feed(feed, rows, before) for declared, feed in pairs}

    def _bind(self, rows: int) -> Any:
        """Return the runtime's binding for a batch of this many rows."""
        binding = self._graph.session.io_binding()
        after = self.states.after(rows)
        for name, array in self.feeds(rows).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        returned = after[:-1] if "offset" in self._contract.feeds else after
        names = list(self._graph.outputs)
        result = self._result[:rows]
        binding.bind_output(names[0], "cpu", 0, np.float32, result.shape, result.ctypes.data)
        for name in names[1 : 1 + self._contract.ignored]:
            binding.bind_output(name, "cpu")
        for name, array in zip(names[1 + self._contract.ignored :], returned, strict=True):
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
    dice = np.random.default_rng(1)
    shape = (2, 3, contract.step_samples, 1) if contract.fbank is None else (2, 3, contract.window, BINS)
    scale = 1_000 if contract.fbank is None else 3
    windows = np.asarray(dice.standard_normal(shape) * scale, np.int32 if contract.fbank is None else np.float32)

    def row_of(rows: int) -> bytes:
        """Return results and state of the first row after two windows, in a batch of this many rows."""
        for slot in range(rows):
            slots.states.reset(slot)
        found = [slots.run(np.arange(rows), each[:rows])[0].tobytes() for each in windows]
        return b"".join(found) + slots.states.export(0)

    alone, of_two = row_of(1), row_of(2)
    return 2 if alone != of_two and of_two == row_of(3) else 1


def check_graph(graph: Graph, contract: Contract) -> tuple[int, ...]:
    """Check a graph against its contract and run one window of silence. Returns: shape of one stream's result.

    Raises: PublishedModelError.
    """
    graph.check_inputs(expected_inputs(contract))
    states = len(contract.states) - ("offset" in contract.feeds)
    graph.need_outputs(1 + contract.ignored + states)
    silence = GraphSlots(graph, contract, (), capacity=1, largest=1)
    outputs = graph.try_out("a window of silence", *silence.feeds(1).values())
    returned = outputs[1 + contract.ignored :]
    for number, (tensor, state) in enumerate(zip(returned, contract.states, strict=False)):
        if tensor.shape != state.batched(1) or tensor.dtype != state.dtype:
            raise PublishedModelError(
                f"{graph.path.name}: next state {number} is {tensor.dtype} {list(tensor.shape)}, "
                f"but its input is {state.dtype} {list(state.batched(1))}"
            )
    if outputs[0].ndim != 3 or outputs[0].dtype != np.float32 or len(outputs[0]) != 1:
        raise PublishedModelError(
            f"{graph.path.name}: output 0 is {outputs[0].dtype} {list(outputs[0].shape)}, not frames of floats"
        )
    return tuple(outputs[0].shape[1:])
