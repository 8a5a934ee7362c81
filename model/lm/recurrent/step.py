"""Compiled scoring of many texts by the recurrent language model: a tree of their pieces, computed depth by depth.

Texts with a common prefix share its steps. Rows of a step are independent: only the matrix products take several rows
at a time, and their integer sums are exact, so a text's score depends neither on other texts nor on the processor.
"""

from __future__ import annotations

from typing import NamedTuple

from model.int8 import kernels
from model.int8.product import PANEL_SUMS, multiply
from model.int8.vectors import LANES, ROW
from model.lm.recurrent.pieces import END
from model.machine.compiled import (
    ZERO,
    DoubleArray,
    IntArray,
    LongArray,
    compiled,
    entry_point,
    float32_at,
    int64_at,
)

ROWS = 32  # rows per block, so that its work space stays in the L2 cache

# columns of the tree, int32, one row per node
PARENT, PIECE, CHILD, SIBLING, DEPTH = range(5)
NODE_INTS = 5


class Product(NamedTuple):
    """Arguments of `model.int8.product.multiply` (addresses and counts), and multiplier and bias of its sums."""

    weights: int
    groups: int
    panels: int
    first: int
    multiplier: int
    bias: int


class Model(NamedTuple):
    """Addresses of the network's weights. The table of gates is (pieces, 3 * hidden) int32, like a product's sums."""

    hidden: int
    table: int
    table_multiplier: int
    table_bias: int
    recurrent: Product
    head: Product
    limits: int  # clipping limits of a quantized state, the input of both products


class Work(NamedTuple):
    """Addresses of work space: states and inputs for `texts` rows at two depths, the rest for one block."""

    texts: int
    states: int  # (2, texts, hidden) float32; before the first step the second half is the initial state
    inputs: int  # (2, texts, hidden) uint8, the states quantized
    offsets: int  # (rows,) int64
    plain_offsets: int  # (rows,) int64: row r begins at r * hidden
    recurrent_sums: int  # (rows, 3 * hidden) int32
    head_sums: int  # (rows, pieces) int32
    spare: int  # (hidden,) float32
    log_probs: int  # (pieces,) float32


class Tree(NamedTuple):
    """Memory for the tree of all texts: M nodes, one more than there are pieces."""

    nodes: IntArray  # (M, NODE_INTS)
    order: IntArray  # (M,) inner nodes, sorted by depth
    rows: IntArray  # (M,) row of a node's state among those of its depth
    values: DoubleArray  # (M,) log-probability of a node's piece given the pieces before it


@entry_point
def score_texts(pieces: IntArray, ends: LongArray, tree: Tree, plan: tuple[Model, Work], scores: DoubleArray) -> None:
    """Write the log-probability of each text, nats, into `scores` (N,).

    `pieces` holds the texts one after another, each followed by END; text i ends before index `ends[i]` (N,).
    """
    count = _by_depth(tree.nodes, _plant(pieces, ends, tree.nodes), tree.order)
    begin, depth = ZERO, ZERO
    while begin < count:
        end = begin
        while end < count and tree.nodes[tree.order[end], DEPTH] == depth:
            end += 1
        _advance(tree, (begin, end), depth & 1, plan[0], plan[1])
        begin, depth = end, depth + 1
    at = ZERO
    for text in range(len(ends)):
        node, total = ZERO, 0.0
        while at < ends[text]:
            node = _child(tree.nodes, node, int(pieces[at]))
            total += tree.values[node]
            at += 1
        scores[text] = total


@compiled
def _child(nodes: IntArray, node: int, piece: int) -> int:
    """Child of a node by its piece, -1 if there is none."""
    child = nodes[node, CHILD]
    while child >= 0 and nodes[child, PIECE] != piece:
        child = nodes[child, SIBLING]
    return int(child)


@compiled
def _plant(pieces: IntArray, ends: LongArray, nodes: IntArray) -> int:
    """Build the tree; return its number of nodes. The root is the END before a text."""
    nodes[0, PARENT], nodes[0, PIECE], nodes[0, CHILD], nodes[0, SIBLING], nodes[0, DEPTH] = -1, END, -1, -1, 0
    count, at = ZERO + 1, ZERO
    for text in range(len(ends)):
        node = ZERO
        while at < ends[text]:
            piece = int(pieces[at])
            child = _child(nodes, node, piece)
            if child < 0:
                child = int(count)
                nodes[child, PARENT], nodes[child, PIECE], nodes[child, CHILD] = node, piece, -1
                nodes[child, SIBLING], nodes[child, DEPTH] = nodes[node, CHILD], nodes[node, DEPTH] + 1
                nodes[node, CHILD] = child
                count += 1
            node = int(child)
            at += 1
    return int(count)


@compiled
def _by_depth(nodes: IntArray, count: int, order: IntArray) -> int:
    """Write the inner nodes into `order`, sorted by depth; return their number."""
    placed, depth, seen = ZERO, ZERO, ZERO
    while seen < count:
        for node in range(count):
            if nodes[node, DEPTH] == depth:
                seen += 1
                if nodes[node, CHILD] >= 0:
                    order[placed] = node
                    placed += 1
        depth += 1
    return int(placed)


@compiled
def _advance(tree: Tree, span: tuple[int, int], half: int, model: Model, work: Work) -> None:
    """Step the nodes `order[span]`, all of one depth, and write the log-probabilities of their children.

    Their states are written to one `half` of the work space; their parents' states are in the other.
    """
    nodes, hidden = tree.nodes, model.hidden
    recurrent, head = model.recurrent, model.head
    offsets, log_probs = int64_at(work.offsets), float32_at(work.log_probs)
    for begin in range(span[0], span[1], ROWS):
        count = min(ROWS, span[1] - begin)
        first = half * work.texts + begin - span[0]  # row of states and inputs
        for row in range(count):
            node = int(tree.order[begin + row])
            parent = int(nodes[node, PARENT])
            above = (1 - half) * work.texts + (tree.rows[parent] if parent >= 0 else ZERO)
            tree.rows[node] = begin - span[0] + row
            offsets[row] = above * hidden
            kernels.copy_bytes(work.states + (first + row) * hidden * 4, work.states + above * hidden * 4, hidden * 4)
        _multiply(recurrent, work.inputs, work.offsets, count, work.recurrent_sums)
        for row in range(count):
            kernels.gates(
                model.table + nodes[tree.order[begin + row], PIECE] * hidden * 12,
                model.table_multiplier,
                model.table_bias,
                work.recurrent_sums + row * recurrent.panels * PANEL_SUMS,
                recurrent.multiplier,
                recurrent.bias,
                work.states + (first + row) * hidden * 4,
                work.spare,
                model.limits,
                work.inputs + (first + row) * hidden,
                hidden // LANES,
            )
        _multiply(head, work.inputs + first * hidden, work.plain_offsets, count, work.head_sums)
        vectors = head.panels * PANEL_SUMS // ROW
        for row in range(count):
            sums = work.head_sums + row * head.panels * PANEL_SUMS
            kernels.log_softmax(sums, head.multiplier, head.bias, work.log_probs, vectors)
            child = int(nodes[tree.order[begin + row], CHILD])
            while child >= 0:
                tree.values[child] = log_probs[nodes[child, PIECE]]
                child = int(nodes[child, SIBLING])


@compiled
def _multiply(product: Product, inputs: int, offsets: int, rows: int, sums: int) -> None:
    multiply(inputs, offsets, rows, product.weights, product.groups, product.panels, product.first, sums)
