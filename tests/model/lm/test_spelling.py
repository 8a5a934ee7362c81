"""Trie of spellings compared with a dictionary of all prefixes, with symbol sets of one and several words."""

from __future__ import annotations

import numpy as np
import pytest

from model.lm.spelling import build_spelling
from tests.support.decoding.trie_walk import walk


@pytest.mark.parametrize("symbols", [1, 27, 63, 64, 65, 200])
def test_every_prefix_is_found_and_no_other(symbols: int) -> None:
    rng = np.random.default_rng(symbols)
    spelled = [tuple(rng.integers(0, symbols, rng.integers(1, 6)).tolist()) for _ in range(300)]
    spelled += [(0,), (symbols - 1,), (symbols - 1, 0)]
    ids = rng.permutation(len(spelled)).astype(np.int32)
    unigrams = -rng.integers(1, 20, len(spelled)).astype(np.float32)  # many words are equally likely
    trie, at, likeliest = build_spelling(spelled, ids, unigrams, symbols)

    begun: dict[tuple[int, ...], list[int]] = {}
    for word, each in zip(ids.tolist(), spelled, strict=True):
        for end in range(len(each) + 1):
            begun.setdefault(each[:end], []).append(word)
    assert len(trie.best) == len(begun)
    nodes = {}
    for beginning, words in begun.items():
        node = nodes[beginning] = walk(trie, beginning)
        assert node >= 0
        assert trie.best[node] == max(unigrams[words])
        assert likeliest[node] == min(word for word in words if unigrams[word] == trie.best[node])
        for symbol in range(symbols):
            if (*beginning, symbol) not in begun:
                assert walk(trie, (*beginning, symbol)) == -1
    assert sorted(nodes.values()) == list(range(len(begun)))
    assert [nodes[each] for each in spelled] == at.tolist()


def test_without_words_the_trie_is_its_root() -> None:
    trie, at, likeliest = build_spelling([], np.zeros(0, np.int32), np.zeros(3, np.float32), 27)
    assert (len(at), likeliest.tolist(), trie.best.tolist()) == (0, [-1], [-np.inf])
    assert walk(trie, [3]) == -1
