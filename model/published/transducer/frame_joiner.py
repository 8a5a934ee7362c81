"""Joiner of a transducer over several frames of several rows at once, and how its outputs depend on the batch.

Most frames yield no symbol. So the next frames of all rows are joined at once with the current output of each row's
decoder; each row continues after its first symbol, whose decoder output the frames joined in vain did not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import entry_point
from model.published.graphs.metadata import Graph

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Best = Callable[[Floats, Floats, NDArray[np.bool_]], tuple[Indices, Floats]]
"""(frames (N, J), decoder outputs (N, J'), written (V,)) -> best symbols (N,), log-probabilities of those written."""
Choose = Callable[[Floats, Floats, Indices], tuple[Indices, Floats]]
"""The same with other symbols chosen than the best, given the rows that the frames belong to (N,)."""

AHEAD = 8  # most frames of a row in a batch of the joiner
LEAST_JOINED, MOST_JOINED, JOINED_LOGITS = 8, 32, 16_384
"""Size of the joiner's batches: `JOINED_LOGITS`, in rows, but within the two limits. With fewer active rows each has
several frames in a batch. Frames after a row's next symbol are joined in vain, and in batches of this size the time of
a joiner is proportional to their rows. Measured with vocabularies of 500, 1,025 and 5,000 symbols."""
CLOSE = 1e-3  # largest difference of logits between batch sizes that is one of rounding
COMPARED_ROWS = (1, 2, 3, 17)  # batch sizes with different kernels of ONNX Runtime


@dataclass(frozen=True, slots=True)
class Rows:
    """How outputs of a decoder and joiner depend on the other rows of a batch.

    `least`: size from which the bits of a row do not depend on it, unless `dependent`. `ahead`: most frames of a row in
    a batch of the joiner, 1 if rows differ by more than rounding, as in 8-bit graphs that are scaled by batch.
    """

    least: int = 1
    dependent: bool = False
    ahead: int = AHEAD

    @classmethod
    def of(cls, graph: Graph, *inputs: tuple[NDArray[Any], int]) -> Rows:
        """Compare outputs of the first row; `inputs`: for the largest of `COMPARED_ROWS`, each with its batch axis.

        Raises: PublishedModelError.
        """

        def row_of(rows: int) -> NDArray[Any]:
            batch = (np.ascontiguousarray(array.take(range(rows), axis)) for array, axis in inputs)
            return np.asarray(graph.try_out(f"a batch of {rows} rows", *batch)[0][0])

        alone, *others = map(row_of, COMPARED_ROWS)
        if all(other.tobytes() == others[0].tobytes() for other in others):
            return cls(least=1 if alone.tobytes() == others[0].tobytes() else 2)
        close = all(np.allclose(other, alone, rtol=0, atol=CLOSE) for other in others)
        return cls(dependent=True, ahead=AHEAD if close else 1)

    def joined(self, other: Rows) -> Rows:
        """Return the dependence of two graphs together."""
        return Rows(max(self.least, other.least), self.dependent or other.dependent, min(self.ahead, other.ahead))

    def padded(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a batch of at least `least` rows; its first row is repeated."""
        missing = self.least - len(array)
        return array if missing <= 0 else np.concatenate([array, *[array[:1]] * missing])


@dataclass(frozen=True, slots=True)
class FirstSymbols:
    """Rows with a symbol, each in its first such frame, and the symbols with their log-probabilities: all (N,)."""

    rows: Indices
    frames: Indices
    symbols: Indices
    log_probs: Floats


class FrameJoiner:
    """Joiner of the next frames of all rows of a step, which finds the next symbol of each row."""

    def __init__(self, best: Best, rows: Rows, encoded: Floats, written: NDArray[np.bool_]) -> None:
        """`encoded` (R, T, J); `written` (V,): whether a symbol is one to be found."""
        self._best, self._written = best, written
        self._encoded = np.ascontiguousarray(encoded)
        size = min(MOST_JOINED, max(LEAST_JOINED, JOINED_LOGITS // len(written)))
        self._limits = rows.ahead, size
        most = max(len(encoded), size)
        self._joined = np.empty((most, 2), np.int64)  # row and frame
        self._frames = np.empty((most, encoded.shape[2]), np.float32)
        self._found = np.empty(len(encoded), np.int64)
        self.after = np.zeros(len(encoded), np.int64)  # first frame of each row that is not searched

    def next_symbols(self, decoded: Floats, choose: Choose | None = None) -> FirstSymbols | None:
        """Join the next frames with the decoder's outputs (R, J'); return None once all frames are searched.

        `after` becomes the frame of a row's symbol, or the first frame that was not joined. `choose` replaces `best`.
        """
        frames, history = self._frames, np.empty((len(self._frames), decoded.shape[1]), np.float32)
        count = gather_frames(self._encoded, decoded, self.after, self._limits, (self._joined, frames, history))
        if not count:
            return None
        frames, history = frames[:count], history[:count]
        if choose is None:
            best, log_probs = self._best(frames, history, self._written)
        else:
            best, log_probs = choose(frames, history, self._joined[:count, 0])
        found = self._found[: find_first(best, self._written, self._joined, self.after, self._found)]
        rows, places = self._joined[found].T
        return FirstSymbols(rows, places, best[found], log_probs[found])


@entry_point
def gather_frames(
    encoded: Floats, decoded: Floats, after: Indices, limits: tuple[int, int], out: tuple[Indices, Floats, Floats]
) -> int:
    """Copy the next frames of each row, and its decoder output as often; return the number N of copies.

    `encoded` (R, T, D), `decoded` (R, D'), `after` (R,): next frame of each row; `limits`: most frames of a row, and
    size of a batch up to which rows have more than one frame; `out`: row and frame of each copy (N, 2), and the copies
    (N, D) and (N, D').
    """
    ahead, size = limits
    joined, frames, history = out
    active = 0
    for row in range(len(after)):
        active += after[row] < encoded.shape[1]
    if not active:
        return 0
    ahead = min(ahead, max(1, size // active))
    count = 0
    for row in range(len(after)):
        for frame in range(after[row], min(after[row] + ahead, encoded.shape[1])):
            joined[count, 0], joined[count, 1] = row, frame
            for column in range(encoded.shape[2]):
                frames[count, column] = encoded[row, frame, column]
            for column in range(decoded.shape[1]):
                history[count, column] = decoded[row, column]
            count += 1
    return count


@entry_point
def find_first(best: Indices, written: NDArray[np.bool_], joined: Indices, after: Indices, found: Indices) -> int:
    """Find the first symbol of each row among the best ones (N,) of its joined frames; return their number M.

    `found` (M,): their places in `best`. `after` becomes the frame of a row's symbol, or the one after its last.
    """
    count, last = 0, -1
    for place in range(len(best)):
        row, frame = joined[place, 0], joined[place, 1]
        if row == last:
            continue
        after[row] = frame + 1
        if written[best[place]]:
            after[row] = frame
            found[count], last = place, row
            count += 1
    return count


def joiner_rows(joiner: Graph, encoded: tuple[int, ...], decoded: tuple[int, ...]) -> Rows:
    """Return the dependence of a joiner on its batch, with inputs of these shapes without the batch axis."""
    dice, most = np.random.default_rng(2), max(COMPARED_ROWS)
    frames, history = (dice.standard_normal((most, *shape)).astype(np.float32) for shape in (encoded, decoded))
    return Rows.of(joiner, (frames, 0), (history, 0))
