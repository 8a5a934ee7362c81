"""Word n-gram language model for the beam search: words, back-off trie, trie of letters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams, read_arpa
from model.lm.cache import SUFFIX, kept, read_cache, write_cache
from model.lm.cache import cache_dirs as default_dirs
from model.lm.score import ROOT, score_text
from model.lm.spelling import CharacterTrie, SpellingTrie, build_characters
from model.lm.trie import END_ID, START_ID, UNKNOWN_ID, BackoffTrie, build_trie

_TRIE = ("first", "word", "log_prob", "backoff", "suffix", "after")
_LETTERS = ("follows", "below", "best")


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Fit of a model to a text. `log_prob` is a natural log over the known words and ends of sentences."""

    sentences: int
    words: int
    unknown: int
    log_prob: float

    @property
    def perplexity(self) -> float:
        """Perplexity per word and end of sentence, without unknown words, as SRILM's `ppl`."""
        known = self.words - self.unknown + self.sentences
        return math.exp(-self.log_prob / known) if known else math.nan

    @property
    def unknown_rate(self) -> float:
        """Fraction of the words that are not in the vocabulary."""
        return self.unknown / self.words if self.words else math.nan


class LanguageModel:
    """Word n-gram model, immutable and shared by threads and streams. A state of a hypothesis is a node of `trie`."""

    def __init__(self, words: Sequence[str], trie: BackoffTrie, characters: CharacterTrie, digest: str) -> None:
        self.words, self.trie, self.characters, self.digest = tuple(words), trie, characters, digest
        self._ids = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def build(cls, ngrams: Ngrams, digest: str = "") -> LanguageModel:
        """Build the arrays from n-gram tables. Raises: ValueError for a duplicate n-gram."""
        trie = build_trie(ngrams.tables)
        unigrams = trie.log_prob[1 : 1 + len(ngrams.words)]
        return cls(ngrams.words, trie, build_characters(ngrams.words, unigrams), digest)

    @classmethod
    def load(cls, path: Path, *, cache_dirs: Sequence[Path] | None = None) -> LanguageModel:
        """Load an ARPA file, through a cache of its arrays that the first load writes; or load such a cache file.

        `cache_dirs` are tried in order; by default the file's own folder, then one in the user's home.
        Raises: LanguageModelError when the file is missing, damaged or not a model.
        """
        path = Path(path)
        try:
            if path.suffix == SUFFIX:
                return cls._from_cache(path)
            digest = _digest(path)
        except OSError as error:
            raise LanguageModelError(f"cannot read language model {path}: {error.strerror}") from error
        folders = default_dirs(path) if cache_dirs is None else cache_dirs
        places = [folder / f"{path.name}-{digest[:16]}{SUFFIX}" for folder in folders]
        return kept(places, lambda file: cls._from_cache(file, digest), lambda: cls._from_arpa(path, digest), cls.save)

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return self.trie.order

    @property
    def start_state(self) -> int:
        """State at the start of a sentence."""
        return int(self.trie.after[1 + START_ID])

    def __contains__(self, word: str) -> bool:
        """Whether the vocabulary has the word."""
        return word in self._ids

    def unigram(self, word: str) -> float:
        """Natural log-probability of a word without context; minus infinity for one outside the vocabulary."""
        word_id = self._ids.get(word)
        return -math.inf if word_id is None else float(self.trie.log_prob[1 + word_id])

    def ids(self, words: Iterable[str]) -> NDArray[np.int32]:
        """Ids of words, (N,) int32."""
        return np.fromiter((self._ids.get(word, UNKNOWN_ID) for word in words), np.int32)

    def score(self, words: Sequence[str], *, bos: bool = True, eos: bool = True) -> list[float]:
        """Natural log-probability of each word and, with `eos`, of the end of the sentence."""
        ids = self.ids(words)
        ids = np.append(ids, np.int32(END_ID)) if eos else ids
        out = np.empty(len(ids), np.float32)
        score_text(*self.trie.arrays, self.start_state if bos else ROOT, ids, out)
        return [float(value) for value in out]

    def follow(self, state: int, word_id: int) -> tuple[float, int]:
        """Natural log-probability of a word by its id in a state, and the state after it."""
        out = np.empty(1, np.float32)
        after = score_text(*self.trie.arrays, state, np.array([word_id], np.int32), out)
        return float(out[0]), int(after)

    def state_after(self, words: Sequence[str], *, bos: bool = True) -> int:
        """State after these words; with `bos` from the start of a sentence, else without context."""
        ids = self.ids(words)
        return int(
            score_text(*self.trie.arrays, self.start_state if bos else ROOT, ids, np.empty(len(ids), np.float32))
        )

    def perplexity(self, lines: Iterable[str]) -> Perplexity:
        """Perplexity of the model on sentences, one per line, words separated by spaces."""
        sentences = words = unknown = 0
        total = 0.0
        for line in lines:
            if not (tokens := line.split()):
                continue
            scores = self.score(tokens)
            known = self.ids(tokens) != UNKNOWN_ID
            total += float(np.sum(scores, where=np.append(known, True)))
            sentences, words, unknown = sentences + 1, words + len(tokens), unknown + int((~known).sum())
        return Perplexity(sentences, words, unknown, total)

    def save(self, path: Path) -> None:
        """Write a cache file of the arrays. Raises: OSError."""
        trie, characters = self.trie, self.characters
        arrays: dict[str, NDArray[Any]] = {name: getattr(trie, name) for name in _TRIE}
        arrays |= {f"letters_{name}": getattr(characters.spelling, name) for name in _LETTERS}
        arrays["letters_word"] = characters.word
        arrays["words"] = np.frombuffer("\n".join(self.words).encode(), np.uint8)
        write_cache(path, {"order": trie.order, "digest": self.digest}, arrays)

    @classmethod
    def _from_cache(cls, path: Path, digest: str | None = None) -> LanguageModel:
        """Read a cache file; with `digest`, only one of that source. Raises: LanguageModelError, OSError."""
        header, arrays = read_cache(path)
        if digest not in (None, header.get("digest")):
            raise LanguageModelError(f"{path} was made from another language model")
        try:
            return cls._of_arrays(header, arrays)
        except (KeyError, ValueError) as error:
            raise LanguageModelError(f"{path} is not a cached language model of this version: {error}") from error

    @classmethod
    def _of_arrays(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> LanguageModel:
        trie = BackoffTrie(header["order"], *(arrays[name] for name in _TRIE))
        spelling = SpellingTrie(*(arrays[f"letters_{name}"] for name in _LETTERS))
        characters = CharacterTrie(spelling, arrays["letters_word"])
        return cls(arrays["words"].tobytes().decode().split("\n"), trie, characters, header["digest"])

    @classmethod
    def _from_arpa(cls, path: Path, digest: str) -> LanguageModel:
        try:
            return cls.build(read_arpa(path), digest)
        except ValueError as error:
            raise LanguageModelError(f"{path}: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
