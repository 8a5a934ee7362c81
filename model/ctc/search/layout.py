"""Memory layout of a stream: column names, size of the block, and the views for kernels.

A stream is a tree of prefixes (nodes, each one symbol longer than its parent) and a few hypotheses (nodes that are
alive). Times are output frames since the start of the stream. Scores are natural logarithms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.machine.compiled import DoubleArray, IntArray, LongArray, compiled, compiled_inline
from model.machine.pointers import FLOAT64, INT32, INT64, pointer_at

BLOCK_FRAMES = 64
"""Most frames of one kernel call; with the tree this bounds the words that a call can commit."""
MAX_LETTERS = 48
"""Most letters of a word; further letters count as blank, which bounds an endless word."""

# symbol, int32 (`Symbols.table`)
ROLE = 0
FIRST = 1  # index of its first letter in the letters of all symbols
COUNT = 2  # of its letters
SYMBOL_INTS = 3
WRITES, BEGINS, SPACE, NEVER = range(4)
"""Roles: letters of the open word; letters of a new word after a space; a space; none, such as blank."""

# header, int64
SKIP = 0  # frames still to skip
FRAMES = 1
CHANGES = 2  # of the best hypothesis
HYPOTHESES = 3  # number alive
NODES = 4  # rows of the tree in use, dead ones included
ROOT = 5  # node of the prefix that all hypotheses share; its text is committed
BEST = 6  # hypothesis
QUIET = 7  # 1: no hypothesis ends in a letter, so a blank has no effect
OUT_WORDS = 8  # committed words that are not fetched yet
OUT_SYMBOLS = 9
BIAS_STATES = 10
BIAS_INTS = 11  # address
BIAS_FLOATS = 12  # address
HEADER = 13

# hypothesis, int32; "blank": alignments that end in blank or space, "letter": in the last letter of the prefix
NODE = 0
BLANK_START = 1  # first frame of the open word in the best alignment
LETTER_START = 2
BLANK_LAST = 3  # last frame of the last letter; for alignments that end in the letter it is the previous frame
HYPOTHESIS_INTS = 4

# hypothesis, float64
BLANK_P = 0
LETTER_P = 1
TOTAL_P = 2  # of both
BLANK_SUM = 3  # sum over the letters of the open word of their best log-probability
LETTER_SUM = 4
LETTER_PEAK = 5  # of the last letter, as counted in LETTER_SUM
OWN_SHARE = 6  # share of TOTAL_P from alignments of this text and not of texts merged into it; a logarithm, 0 for all
HYPOTHESIS_FLOATS = 7

# node, int32
PARENT = 0
SYMBOL = 1  # the last symbol; a repeat needs a blank in between
CHILD = 2  # first of a list linked by SIBLING
SIBLING = 3
DEPTH = 4
HYPOTHESIS = 5  # the one at this node, or -1
LETTERS = 6  # of the open word; 0 at a word boundary
LM_STATE = 7  # before the open word
SPELLING = 8  # node of the vocabulary's trie for the open word, -1: out of vocabulary
BIAS_STATE = 9
WORD_START = 10  # of the word closed here by a space, or RECORDED_BELOW
WORD_LAST = 11
NEXT_STATE = 12  # LM state after the open word as its first homophone, once CLOSING is known
WORD = 12  # at a boundary (no open word): the language model's word that closed here; -1 if symbols spell it
NODE_INTS = 13
RECORDED_BELOW = -1
"""At a boundary: the word's record is at the piece that begins the next word; there may be several."""

# node, float64
BASE = 0  # final score of the text so far
SCORE = 1  # BASE plus the expected scores of the open word and the open key term
LOOK = 2  # expected score of the open word
WAIVED = 3  # cost of unknown words that is waived for the open key term
WORD_SUM = 4  # of that word
OTHERS = 4  # after the first phone of a word (only that one records a word): largest CLOSING of its other homophones
CLOSING = 5  # LM score of the open word, its first homophone, if it ended here; NaN until computed
NODE_FLOATS = 6

# automaton of key terms: states
TERM_START, TERM_ELSEWHERE = 0, 1  # outside of phrases: at a word boundary, inside a word
SPACE_COLUMN = 1_000  # of a space, after the columns of letters or phones

# automaton of key terms, int32: a row for each state and one more (`Bias.ints`)
TERM_FIRST = 0  # children of state s are TERM_FIRST[s] to TERM_FIRST[s + 1] - 1
TERM_COLUMN = 1  # column of the letter or space of the transition to here
TERM_FAIL = 2  # state to continue from if no child matches
TERM_COVERS = 3  # 1: inside a phrase of positive weight
TERM_COMPLETE = 4  # 1: a phrase ends here
TERM_INTS = 5

# automaton of key terms, float64 (`Bias.floats`)
TERM_VALUE = 0
TERM_BANK = 1  # score of complete phrases, kept when the state is left by TERM_FAIL
TERM_GAIN = 2  # row 0: most that one letter can add
TERM_FLOATS = 3

# words written for the caller, int32
OUT_START = 0
OUT_LAST = 1
OUT_PIECES = 2  # number of symbols of the word, each with one letter or more
OUT_WORD = 3  # number in the language model, -1: spelled by the symbols
OUT_INTS = 4


class Stream(NamedTuple):
    """Pointers into one stream's block; the comments have their sizes."""

    beams: int
    header: LongArray  # (HEADER,)
    hypotheses_f: DoubleArray  # (beams, HYPOTHESIS_FLOATS)
    nodes_f: DoubleArray  # (nodes, NODE_FLOATS)
    out_sums: DoubleArray  # (out,)
    hypotheses_i: IntArray  # (beams, HYPOTHESIS_INTS)
    nodes_i: IntArray  # (nodes, NODE_INTS)
    out_words: IntArray  # (out, OUT_INTS)
    out_symbols: IntArray  # (out,)


def tree_nodes_of(beams: int) -> int:
    """Rows of the tree: live prefixes are a few dozen more than beams; the other rows make compaction rare."""
    return 24 * beams + 256


tree_nodes = compiled(tree_nodes_of)


@compiled
def slots_for(beams: int) -> int:
    """Slots of a hash table of the hypotheses: a power of two, at most half of them in use."""
    slots = 2
    while slots < 2 * beams:
        slots *= 2
    return slots


def block_bytes(beams: int) -> int:
    """Size of one stream's block in bytes."""
    nodes, out = tree_nodes_of(beams), tree_nodes_of(beams) + BLOCK_FRAMES
    doubles = HEADER + beams * HYPOTHESIS_FLOATS + nodes * NODE_FLOATS + out
    ints = beams * HYPOTHESIS_INTS + nodes * NODE_INTS + out * OUT_INTS + out
    return 8 * doubles + 4 * ints


def out_offsets(beams: int) -> tuple[int, int, int]:
    """Byte offsets of `out_words`, `out_symbols` and `out_sums` in the block."""
    nodes, out = tree_nodes_of(beams), tree_nodes_of(beams) + BLOCK_FRAMES
    sums = 8 * (HEADER + beams * HYPOTHESIS_FLOATS + nodes * NODE_FLOATS)
    words = sums + 8 * out + 4 * (beams * HYPOTHESIS_INTS + nodes * NODE_INTS)
    return words, words + 4 * out * OUT_INTS, sums


longs, doubles, ints = pointer_at(INT64), pointer_at(FLOAT64), pointer_at(INT32)  # to single numbers
hypothesis_floats, hypothesis_ints = pointer_at(FLOAT64, HYPOTHESIS_FLOATS), pointer_at(INT32, HYPOTHESIS_INTS)
_node_floats, _node_ints = pointer_at(FLOAT64, NODE_FLOATS), pointer_at(INT32, NODE_INTS)
_out_ints = pointer_at(INT32, OUT_INTS)


@compiled_inline
def copy_row(target: Any, to: int, source: Any, row: int, columns: int) -> None:
    """target[to] = source[row], both with rows of `columns` numbers."""
    for column in range(columns):
        target[to, column] = source[row, column]


@compiled
def stream_at(address: int, beams: int) -> Stream:
    """Return the pointers of the stream whose block is at `address`; doubles first, so that all are aligned."""
    nodes = tree_nodes(beams)
    out = nodes + BLOCK_FRAMES
    hypotheses_f = address + 8 * HEADER
    nodes_f = hypotheses_f + 8 * beams * HYPOTHESIS_FLOATS
    out_sums = nodes_f + 8 * nodes * NODE_FLOATS
    hypotheses_i = out_sums + 8 * out
    nodes_i = hypotheses_i + 4 * beams * HYPOTHESIS_INTS
    out_words = nodes_i + 4 * nodes * NODE_INTS
    out_symbols = out_words + 4 * out * OUT_INTS
    return Stream(
        beams,
        longs(address),
        hypothesis_floats(hypotheses_f),
        _node_floats(nodes_f),
        doubles(out_sums),
        hypothesis_ints(hypotheses_i),
        _node_ints(nodes_i),
        _out_ints(out_words),
        ints(out_symbols),
    )
