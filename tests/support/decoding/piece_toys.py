"""Vocabularies of pieces for tests of the beam search, and a reference search over all alignments."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from model.ctc.beam import BeamDecoder
from model.ctc.tokens import Tokens
from tests.support.decoding.beam_toys import FRAME_S, speech_like, toy_lm, words_score

PIECES = ("<blk>", "<unk>", "▁", "▁a", "▁ab", "a", "b", "ba", "▁c", "ab")
SYMBOLS = (*PIECES[1:], "<blk>")


def tokens_of(symbols: tuple[str, ...]) -> Tokens:
    """Tokens with the blank `<blk>` at any position."""
    return Tokens.of(symbols, symbols.index("<blk>"))


def log_probs_of(symbols: tuple[str, ...], pieces: list[str], certainty: float = 0.9) -> np.ndarray:
    """Log-probabilities (T, V) in which the given pieces are the likeliest; `_` is the blank."""
    numbers = [symbols.index("<blk>" if piece == "_" else piece) for piece in pieces]
    table = np.full((len(numbers), len(symbols)), (1 - certainty) / (len(symbols) - 1), np.float32)
    table[np.arange(len(numbers)), numbers] = certainty
    return np.log(table)


def words_of(pieces: tuple[str, ...]) -> list[str]:
    """Words of a sequence of pieces."""
    return "".join(pieces).replace("▁", " ").split()


def all_sequences(log_probs: np.ndarray, symbols: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Log-probability of every sequence of pieces: the sum over all CTC alignments.

    A space at the start, at the end or after a space is not written, and specials are never chosen.
    """
    totals: dict[tuple[str, ...], float] = {}
    allowed = [n for n, symbol in enumerate(symbols) if symbol == "<blk>" or not symbol.startswith("<")]
    blank = symbols.index("<blk>")
    rows = log_probs.astype(np.float64).tolist()
    for alignment in product(allowed, repeat=len(rows)):
        pieces: list[str] = []
        for number, before in zip(alignment, (blank, *alignment), strict=False):
            if number in (blank, before) or (symbols[number] == "▁" and (not pieces or pieces[-1] == "▁")):
                continue
            pieces.append(symbols[number])
        key = tuple(pieces[:-1] if pieces and pieces[-1] == "▁" else pieces)
        total = sum(row[n] for row, n in zip(rows, alignment, strict=True))
        totals[key] = float(np.logaddexp(totals.get(key, -math.inf), total))
    return totals


def best_texts(totals, lm, weights, term=(), boost=0.0):
    """Texts of the best sequences of pieces up to rounding, with language model and key term."""

    def worth(words):
        places, place = [], 0
        while term and place < len(words):
            if tuple(words[place : place + len(term)]) == tuple(term):
                places.append(place)
                place += len(term)
            else:
                place += 1
        earned = len(places) * boost * weights.keyterm_boost * sum(map(len, term))
        forgiven = {p + i for p in places for i in range(len(term))} if boost > 0 else set()
        return words_score(words, lm, weights, forgiven) + earned

    scores = {key: total + worth(words_of(key)) for key, total in totals.items()}
    most = max(scores.values())
    return {" ".join(words_of(key)) for key, score in scores.items() if score >= most - 1e-5}


def piece_decoder(beams=8, *, lm=True, symbols=SYMBOLS, **options):
    return BeamDecoder(tokens_of(symbols), FRAME_S, beams=beams, lm=toy_lm() if lm else None, **options)


def spoken_pieces(seed: int, frames: int) -> np.ndarray:
    """Log-probabilities (T, V) that resemble speech, with the blank last."""
    return np.ascontiguousarray(np.roll(speech_like(seed, frames, len(SYMBOLS)), -1, axis=1))
