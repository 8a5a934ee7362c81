"""The automaton of key terms as compiled code walks it; `bias` builds it and says what it means."""

from __future__ import annotations

from model.compiled import DoubleArray, IntArray, compiled

SPACE_COLUMN = 27  # after those of the letters, which are those of the language model's spelling: a to z, apostrophe

# states
START, ELSEWHERE = 0, 1  # at a word boundary, or inside a word, with no phrase begun

# columns of `Bias.ints`
FIRST = 0  # children of state s are FIRST[s] to FIRST[s + 1] - 1
COLUMN = 1  # that leads here
FAIL = 2  # state to go on from where no child fits
COVERS = 3  # 1: inside a phrase of positive weight
COMPLETE = 4  # 1: a phrase ends here
TERM_INTS = 5

# columns of `Bias.floats`
VALUE = 0
BANK = 1  # what has been earned for good when the state is left by FAIL
GAIN = 2  # row 0: the most that one symbol can add
TERM_FLOATS = 3


@compiled
def follow_terms(ints: IntArray, floats: DoubleArray, state: int, column: int) -> tuple[int, float, bool]:
    """Return the state after a letter or space, what was earned on the way, and whether a phrase broke off."""
    earned, broke = 0.0, False
    while True:
        for child in range(ints[state, FIRST], ints[state + 1, FIRST]):
            if ints[child, COLUMN] == column:
                return child, earned, broke
        if state <= ELSEWHERE:
            return (START if column == SPACE_COLUMN else ELSEWHERE), earned, broke
        earned += floats[state, BANK]
        state = ints[state, FAIL]
        broke = True
