"""Machine code of the probability of one text under CTC, by the forward algorithm over its symbols and blanks."""

from __future__ import annotations

import numpy as np

from model.compiled import FloatArray, IntArray, entry_point
from model.ctc.search.logs import add_logs


@entry_point
def text_score(log_probs: FloatArray, symbols: IntArray, blank: int, space: int) -> float:
    """Sum over the alignments of the symbols: by prefix, after each frame, those that end in blank and in a letter.

    One prefix more than there are symbols is the text with a space at its end.
    """
    count = len(symbols)
    ends_blank = np.full(count + 2, -np.inf)
    ends_letter = np.full(count + 2, -np.inf)
    ends_blank[0] = 0.0
    for t in range(len(log_probs)):
        row = log_probs[t]
        for n in range(count + 1, -1, -1):  # a prefix is extended from the shorter one's values before this frame
            symbol = space if n in {0, count + 1} else int(symbols[n - 1])
            total = add_logs(ends_blank[n], ends_letter[n])
            entered = -np.inf
            if n > 0 and symbol >= 0:
                repeats = n > 1 and n <= count and symbols[n - 2] == symbol
                before = ends_blank[n - 1] if repeats else add_logs(ends_blank[n - 1], ends_letter[n - 1])
                entered = before + row[symbol]
            if symbol == space:  # a boundary: further spaces leave the text as it is
                rest = (
                    add_logs(np.float64(row[blank]), np.float64(row[space])) if space >= 0 else np.float64(row[blank])
                )
                ends_blank[n] = add_logs(total + rest, entered)
            else:
                ends_blank[n] = total + row[blank]
                ends_letter[n] = add_logs(ends_letter[n] + row[symbol], entered)
    ended = add_logs(ends_blank[count], ends_letter[count])
    return add_logs(ended, add_logs(ends_blank[count + 1], ends_letter[count + 1])) if count else ended
