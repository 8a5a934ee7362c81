"""Writing of ARPA files, the form in which language models are made."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from model.lm.arpa import Ngrams
from model.lm.arpa_rows import LN10
from model.lm.trie import NgramTable
from model.machine.compiled import FloatArray


def write_arpa(path: Path, model: Ngrams, *, digits: int = 4) -> None:
    """Write a model, gzipped when the name ends in .gz. Deterministic.

    `digits` decimals of each logarithm are written; 4 are exact to 0.01 % of a probability.
    """
    raw = path.open("wb")
    with raw, _compressed(raw) if path.suffix == ".gz" else raw as file:
        file.write(b"\\data\\\n")
        file.writelines(f"ngram {n}={len(table)}\n".encode() for n, table in enumerate(model.tables, 1))
        for n, table in enumerate(model.tables, 1):
            file.write(f"\n\\{n}-grams:\n".encode())
            file.writelines(_lines(model.words, table, digits, longest=n == len(model.tables)))
        file.write(b"\n\\end\\\n")


def _compressed(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=7, mtime=0))


def _lines(words: tuple[str, ...], table: NgramTable, digits: int, *, longest: bool) -> Iterator[bytes]:
    """Yield the lines of n-grams; the `longest` ones, and those with a weight of 1, have no back-off weights."""
    log_probs, weights = _numbers(table.log_prob, digits), _numbers(table.backoff, digits)
    weighted = (table.backoff / LN10 != 0) & (not longest)
    for ids, log_prob, weight, has_weight in zip(
        table.ids.tolist(), log_probs, weights, weighted.tolist(), strict=True
    ):
        line = f"{log_prob}\t{' '.join([words[each] for each in ids])}"
        yield (f"{line}\t{weight}\n" if has_weight else f"{line}\n").encode()


def _numbers(logs: FloatArray, digits: int) -> list[str]:
    """Return natural logarithms in base 10; each value is formatted once."""
    values, places = np.unique(logs, return_inverse=True)
    texts = [_number(value, digits) for value in (values / LN10).tolist()]
    return [texts[place] for place in places.tolist()]


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text
