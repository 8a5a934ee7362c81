"""Recombination: merges hypotheses with equal future scores; the likelier text continues with the probability of both.

Future scores are equal if the states of language model and key terms, the open word and the last symbol are the same,
whatever words precede them. Without recombination a beam fills with one ending after many beginnings. Hypotheses of
letters are not merged if there is room for all, and the search is exact then. Hypotheses of phones are always merged,
because homophones would otherwise stay open however much speech follows. Which text is likelier is decided by its own
alignments, without those of texts merged into it before.

Source: Ney and Ortmanns 1999, "Dynamic programming search for continuous speech recognition", section on recombination.
"""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.candidates import Work
from model.ctc.search.layout import Stream, copy_row
from model.ctc.search.logs import add_logs
from model.machine.compiled import compiled, compiled_inline

EMPTY = -1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio. Source: Knuth, The Art of Computer Programming 3, 6.4


@compiled
def clear_slots(work: Work) -> None:
    """Remove the hypotheses of the previous frame."""
    for slot in range(work.last_slot + 1):
        work.slots[slot] = EMPTY


@compiled_inline
def merged(stream: Stream, work: Work, place: int) -> bool:
    """Merge the new hypothesis in row `place` into an earlier one with the same future; return whether there is one.

    If there is none, later hypotheses are compared with this one.
    """
    last_slot = work.last_slot
    node = int(work.next_i[place, at.NODE])
    slot = _hash(stream, node) & last_slot
    while work.slots[slot] != EMPTY:
        other = int(work.slots[slot])
        if _same_future(stream, node, int(work.next_i[other, at.NODE])):
            _merge(stream, work, other, place)
            return True
        slot = (slot + 1) & last_slot
    work.slots[slot] = place
    return False


@compiled_inline
def _hash(stream: Stream, node: int) -> int:
    """Hash of what `_same_future` compares, except letters that spell no word."""
    ints = stream.nodes_i
    key = np.uint64(np.int64(ints[node, at.LM_STATE]))
    for column in (at.SPELLING, at.BIAS_STATE, at.LETTERS, at.SYMBOL):
        key = (key ^ (key >> np.uint64(29))) * np.uint64(_GOLDEN) + np.uint64(np.int64(ints[node, column]))
    return int(((key ^ (key >> np.uint64(32))) * np.uint64(_GOLDEN)) >> np.uint64(33))


@compiled_inline
def _same_future(stream: Stream, a: int, b: int) -> bool:
    ints, floats = stream.nodes_i, stream.nodes_f
    if (
        ints[a, at.LM_STATE] != ints[b, at.LM_STATE]
        or ints[a, at.BIAS_STATE] != ints[b, at.BIAS_STATE]
        or floats[a, at.LOOK] != floats[b, at.LOOK]  # for an unknown word it depends on the key terms that covered it
        or floats[a, at.WAIVED] != floats[b, at.WAIVED]
    ):
        return False
    while a != b:
        if ints[a, at.LETTERS] != ints[b, at.LETTERS] or ints[a, at.SYMBOL] != ints[b, at.SYMBOL]:
            return False
        if ints[a, at.LETTERS] == 0:
            return True
        a, b = int(ints[a, at.PARENT]), int(ints[b, at.PARENT])
        if ints[a, at.LETTERS] == 0 and ints[b, at.LETTERS] == 0:
            return True
    return True


@compiled_inline
def _merge(stream: Stream, work: Work, other: int, place: int) -> None:
    """Keep in row `other` the hypothesis with the likelier text of its own, with the probability of both."""
    ints, floats, scores = work.next_i, work.next_f, stream.nodes_f
    ahead = scores[ints[place, at.NODE], at.SCORE] - scores[ints[other, at.NODE], at.SCORE]
    own = floats[other, at.TOTAL_P] + floats[other, at.OWN_SHARE]
    own_place = floats[place, at.TOTAL_P] + floats[place, at.OWN_SHARE]
    if own_place + ahead > own:
        own = own_place
        blank, letter = floats[other, at.BLANK_P] - ahead, floats[other, at.LETTER_P] - ahead
        copy_row(ints, other, ints, place, at.HYPOTHESIS_INTS)
        copy_row(floats, other, floats, place, at.HYPOTHESIS_FLOATS)
    else:
        blank, letter = floats[place, at.BLANK_P] + ahead, floats[place, at.LETTER_P] + ahead
    floats[other, at.BLANK_P] = add_logs(floats[other, at.BLANK_P], blank)
    floats[other, at.LETTER_P] = add_logs(floats[other, at.LETTER_P], letter)
    floats[other, at.TOTAL_P] = add_logs(floats[other, at.BLANK_P], floats[other, at.LETTER_P])
    floats[other, at.OWN_SHARE] = own - floats[other, at.TOTAL_P]
    work.scores[other] = floats[other, at.TOTAL_P] + scores[ints[other, at.NODE], at.SCORE]
