"""Words of another recognizer with the times of ours, by an alignment of both texts with the fewest edits. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from model.ctc.words import Word

LONGEST_S = 0.3  # of a word without a partner, before the first or after the last of ours
SHORTEST_S = 0.08  # of such a word between two of ours; if there is less room, the word before it shares its time


def aligned(
    texts: Sequence[str],
    ours: Sequence[Word],
    *,
    begin_s: float,
    end_s: float,
    confidence: float,
    written: Sequence[str] = (),
) -> tuple[Word, ...]:
    """Return a word for each text, in order, with the times of our words, of which there is at least one.

    A text has the times of its partner in the alignment; texts without one divide the time between their neighbors,
    by their letters. `begin_s`, `end_s`: of the audio, in the time of our words. The confidence of a text that is not
    ours is `confidence`. `written`: the texts with capitals and marks.
    """
    partners = partners_of(texts, [word.text for word in ours])
    words: list[Word] = []
    at = 0
    while at < len(texts):
        partner = partners[at]
        if partner is not None:
            word = ours[partner]
            equal = word.text == texts[at]
            words.append(Word(texts[at], word.start_s, word.end_s, word.confidence if equal else confidence))
            at += 1
            continue
        end = next((later for later in range(at, len(texts)) if partners[later] is not None), len(texts))
        following = partners[end] if end < len(texts) else None
        until_s = None if following is None else ours[following].start_s
        words = _with_run(words, texts[at:end], until_s, begin_s=begin_s, end_s=end_s, confidence=confidence)
        at = end
    return tuple(replace(word, written=form) for word, form in zip(words, written or ("",) * len(words), strict=True))


def _with_run(
    words: list[Word], run: Sequence[str], until_s: float | None, *, begin_s: float, end_s: float, confidence: float
) -> list[Word]:
    """Return words, followed by texts without a partner, up to the next word at `until_s`; None: there is none."""
    if not words:
        until_s = end_s if until_s is None else until_s
        return _divided(run, max(begin_s, until_s - LONGEST_S * len(run)), until_s, confidence)
    last = words[-1]
    if until_s is None:
        until_s = max(last.end_s, min(end_s, last.end_s + LONGEST_S * len(run)))
    if until_s - last.end_s >= SHORTEST_S * len(run):
        return words + _divided(run, last.end_s, until_s, confidence)
    shared = _divided([last.text, *run], last.start_s, max(until_s, last.end_s), confidence)
    first = Word(last.text, shared[0].start_s, shared[0].end_s, last.confidence)
    return [*words[:-1], first, *shared[1:]]


def _divided(texts: Sequence[str], begin_s: float, end_s: float, confidence: float) -> list[Word]:
    """Return words that divide a time by the numbers of their letters."""
    per_letter_s = (end_s - begin_s) / sum(map(len, texts))
    words, start_s = [], begin_s
    for text in texts:
        words.append(Word(text, start_s, start_s + per_letter_s * len(text), confidence))
        start_s = words[-1].end_s
    return words


def partners_of(texts: Sequence[str], ours: Sequence[str]) -> list[int | None]:
    """Return for each text the index of the word of ours that it is, or replaces; None for one that is inserted.

    The alignment has the fewest insertions, deletions and replacements. Source: Wagner and Fischer 1974.
    """
    rows = [list(range(len(ours) + 1))]  # rows[i][j]: edits between the first i texts and the first j of ours
    for i, text in enumerate(texts):
        before, row = rows[i], [i + 1]
        for j, word in enumerate(ours):
            row.append(min(before[j] + (text != word), before[j + 1] + 1, row[j] + 1))
        rows.append(row)
    partners: list[int | None] = [None] * len(texts)
    i, j = len(texts), len(ours)
    while i and j:
        differs = texts[i - 1] != ours[j - 1]
        if rows[i][j] == rows[i - 1][j - 1] + differs:
            i, j = i - 1, j - 1
            partners[i] = j
        elif rows[i][j] == rows[i][j - 1] + 1:
            j -= 1
        else:
            i -= 1
    return partners
