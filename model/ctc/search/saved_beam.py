"""Serialization of a beam search stream; a restored stream gives bit-identical results.

The tree is stored as parents and symbols only, because the scores of a prefix are computed from those of its parent.
Dead prefixes are stored too, because they can become alive again with their records. The number of rows in use is
stored because it determines when the tree is compacted.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.ctc.search import layout as at
from model.ctc.search.layout import tree_nodes_of
from model.ctc.search.symbols import Symbols
from model.machine.compiled import DoubleArray, IntArray, LongArray

VERSION = 5  # changes with the layout, or with the meaning of a field
SavedWord = tuple[str, float, float, float]
_KEPT = (at.SKIP, at.FRAMES, at.CHANGES, at.BEST, at.QUIET)  # header fields, stored unchanged
_STAMPS = [at.WORD_START, at.WORD_LAST]


class SavedBeam(msgspec.Struct, array_like=True, frozen=True):
    """Serialized state of one stream without its key terms. Arrays are little-endian bytes."""

    version: int
    header: tuple[int, ...]  # of `_KEPT`
    nodes: int  # rows of the tree in use, including unreachable ones
    parents: bytes  # (N - 1,) uint16, of all nodes but the root, which is 0; parents precede children
    symbols: bytes  # (N - 1,) uint16
    stamps: bytes  # (W, 2) int32, of nodes that close a word: spaces, and pieces or phones that begin one
    sums: bytes  # (W,) float64
    root: bytes  # (NODE_INTS,) int32
    root_f: bytes  # (NODE_FLOATS,) float64
    hypotheses: bytes  # (H, HYPOTHESIS_INTS) int32
    hypotheses_f: bytes  # (H, HYPOTHESIS_FLOATS) float64
    has_text: bool
    silence_frames: int
    taken: int
    last_end: int
    committed: tuple[SavedWord, ...]


class Memory:
    """Views of one stream's block."""

    def __init__(self, block: NDArray[np.uint8], beams: int) -> None:
        nodes, self._at, self._block = tree_nodes_of(beams), 0, block
        self.header: LongArray = self._next(np.int64, (at.HEADER,))
        self.hypotheses_f: DoubleArray = self._next(np.float64, (beams, at.HYPOTHESIS_FLOATS))
        self.nodes_f: DoubleArray = self._next(np.float64, (nodes, at.NODE_FLOATS))
        self._at += 8 * (nodes + at.BLOCK_FRAMES)  # skip the sums of committed words
        self.hypotheses: IntArray = self._next(np.int32, (beams, at.HYPOTHESIS_INTS))
        self.nodes: IntArray = self._next(np.int32, (nodes, at.NODE_INTS))

    def _next(self, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        count = int(np.prod(shape))
        array = np.frombuffer(self._block, dtype, count, self._at).reshape(shape)
        self._at += array.nbytes
        return array


def tree_parts(memory: Memory, symbols: Symbols) -> dict[str, Any]:
    """Return the fields of `SavedBeam` that are in the block."""
    header = memory.header
    used, root, alive = int(header[at.NODES]), int(header[at.ROOT]), int(header[at.HYPOTHESES])
    parents = memory.nodes[:used, at.PARENT]
    kept = np.flatnonzero(_below_root(parents, root))  # (N,), the root first
    place = np.zeros(used, np.int32)
    place[kept] = np.arange(len(kept))
    rest = kept[1:]
    written = memory.nodes[rest, at.SYMBOL]
    closed = rest[_closing(written, memory.nodes[parents[rest], at.SYMBOL], symbols)]
    hypotheses = memory.hypotheses[:alive].copy()
    hypotheses[:, at.NODE] = place[hypotheses[:, at.NODE]]
    return {
        "header": tuple(header[list(_KEPT)].tolist()),
        "nodes": used,
        "parents": place[parents[rest]].astype(np.uint16).tobytes(),
        "symbols": written.astype(np.uint16).tobytes(),
        "stamps": memory.nodes[closed][:, _STAMPS].tobytes(),
        "sums": memory.nodes_f[closed, at.WORD_SUM].tobytes(),
        "root": memory.nodes[root].tobytes(),
        "root_f": memory.nodes_f[root].tobytes(),
        "hypotheses": hypotheses.tobytes(),
        "hypotheses_f": memory.hypotheses_f[:alive].tobytes(),
    }


def _closing(written: IntArray, before: IntArray, symbols: Symbols) -> NDArray[np.bool_]:
    """Return which of these symbols (N,), after the symbols `before` (N,), can close a word, (N,) bool."""
    roles = symbols.table[written, at.ROLE]
    closing: NDArray[np.bool_] = (roles == at.SPACE) | (roles == at.BEGINS) | (before >= symbols.boundary)
    return closing


def _below_root(parents: IntArray, root: int) -> NDArray[np.bool_]:
    """Return the nodes below the root, (nodes,) bool, by pointer doubling: ancestors at distance 1, 2, 4 …"""
    known = np.where(parents < 0, np.arange(len(parents)), parents)
    known[root] = root
    while not np.array_equal(further := known[known], known):
        known = further
    led: NDArray[np.bool_] = known == root
    return led


class Tree(msgspec.Struct):
    """Validated arrays of a `SavedBeam`."""

    parents: IntArray
    symbols: IntArray
    closed: NDArray[np.int64]  # rows that close a word
    stamps: IntArray
    sums: DoubleArray
    root: IntArray
    root_f: DoubleArray
    hypotheses: IntArray
    hypotheses_f: DoubleArray


def checked_tree(saved: SavedBeam, *, beams: int, symbols: Symbols, sizes: tuple[int, int, int]) -> Tree:
    """Read and validate the arrays; `sizes`: nodes of the language model's trie, its spellings, states of key terms.

    Raises: ValueError for values with which compiled code would access memory out of bounds.
    """
    states, spellings, terms = sizes
    written = np.frombuffer(saved.symbols, np.uint16).astype(np.int32)
    parents, root = np.frombuffer(saved.parents, np.uint16).astype(np.int32), np.frombuffer(saved.root, np.int32)
    if (
        not (written <= symbols.last).all()
        or (symbols.table[written, at.ROLE] == at.NEVER).any()
        or len(parents) != len(written)
        or not (parents <= np.arange(len(parents))).all()
        or root.shape != (at.NODE_INTS,)
    ):
        raise ValueError("the saved state is damaged or not one of this beam search")
    before = np.concatenate([root[[at.SYMBOL]], written])[parents]
    tree = Tree(
        parents,
        written,
        np.flatnonzero(_closing(written, before, symbols)) + 1,
        np.frombuffer(saved.stamps, np.int32).reshape(-1, len(_STAMPS)),
        np.frombuffer(saved.sums, np.float64),
        root,
        np.frombuffer(saved.root_f, np.float64),
        np.frombuffer(saved.hypotheses, np.int32).reshape(-1, at.HYPOTHESIS_INTS),
        np.frombuffer(saved.hypotheses_f, np.float64).reshape(-1, at.HYPOTHESIS_FLOATS),
    )
    rows = len(tree.parents) + 1
    possible = (
        len(saved.header) == len(_KEPT)
        and len(tree.stamps) == len(tree.sums) == len(tree.closed)
        and rows <= saved.nodes <= tree_nodes_of(beams)
        and tree.root_f.shape == (at.NODE_FLOATS,)
        and 0 <= root[at.LM_STATE] < max(1, states)
        and -1 <= root[at.SPELLING] < max(1, spellings)
        and 0 <= root[at.BIAS_STATE] < max(1, terms)
        and 0 <= root[at.SYMBOL] <= symbols.last
        and root[at.LETTERS] == 0
        and 1 <= len(tree.hypotheses) == len(tree.hypotheses_f) <= beams
        and bool(((tree.hypotheses[:, at.NODE] >= 0) & (tree.hypotheses[:, at.NODE] < rows)).all())
        and len(np.unique(tree.hypotheses[:, at.NODE])) == len(tree.hypotheses)
        and 0 <= saved.header[_KEPT.index(at.BEST)] < len(tree.hypotheses)
        and saved.header[_KEPT.index(at.SKIP)] >= 0
    )
    if not possible:
        raise ValueError("the saved state is damaged or not one of this beam search")
    return tree


def write_root(memory: Memory, saved: SavedBeam, tree: Tree) -> None:
    """Write the header, the root and the hypotheses to a zeroed block; `kernel.regrow` adds the other nodes."""
    memory.header[list(_KEPT)] = saved.header
    memory.header[at.ROOT], memory.header[at.HYPOTHESES] = 0, len(tree.hypotheses)
    memory.nodes[0], memory.nodes_f[0] = tree.root, tree.root_f
    memory.nodes[0, [at.PARENT, at.CHILD, at.SIBLING, at.HYPOTHESIS]] = -1
    memory.hypotheses[: len(tree.hypotheses)] = tree.hypotheses
    memory.hypotheses_f[: len(tree.hypotheses)] = tree.hypotheses_f


def link_hypotheses(memory: Memory, saved: SavedBeam, tree: Tree) -> None:
    """Write the records of closed words and link nodes to their hypotheses, after `regrow`."""
    memory.header[at.NODES] = saved.nodes
    memory.nodes[len(tree.parents) + 1 : saved.nodes, at.PARENT] = -1  # in use, but unreachable
    memory.nodes[tree.closed, at.WORD_START], memory.nodes[tree.closed, at.WORD_LAST] = tree.stamps.T
    memory.nodes_f[tree.closed, at.WORD_SUM] = tree.sums
    memory.nodes[tree.hypotheses[:, at.NODE], at.HYPOTHESIS] = np.arange(len(tree.hypotheses))
