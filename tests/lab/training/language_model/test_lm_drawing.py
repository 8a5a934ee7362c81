"""Sampling from a model: frequencies of words match its probabilities."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams
from model.lm.trie import END_ID, SPECIAL_WORDS, START_ID
from tests.support.decoding.lm_reference import as_dict, backoff_log_prob
from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
from tutti_asr_lab.training.language_model.counting import count_ngrams, number_words
from tutti_asr_lab.training.language_model.drawing import Drawing
from tutti_asr_lab.training.language_model.kneser_ney import estimate

WORDS = (*SPECIAL_WORDS, "a", "b", "c", "d")
LINES = ["a b c", "a b d", "b b a c", "c a b d a", "d", "a b c a b", "b a"]
DRAWN = 60_000


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = estimate(count_ngrams(number_words(LINES, WORDS), len(WORDS), 3), (1, 1, 1))
    path = tmp_path_factory.mktemp("drawing") / "toy.arpa"
    write_arpa(path, Ngrams(WORDS, tuple(tables)), digits=6)
    return path


def test_frequencies_match_the_probabilities_given_two_words_before(arpa: Path) -> None:
    tables = estimate(count_ngrams(number_words(LINES, WORDS), len(WORDS), 3), (1, 1, 1))
    entries = as_dict(tables)
    drawn = [WORDS.index(word) for word in islice(Drawing(arpa), DRAWN)]
    followed: dict[tuple[int, ...], Counter[int]] = {}
    context: tuple[int, ...] = (START_ID,)
    for word in drawn:
        followed.setdefault(context, Counter())[word] += 1
        context = (START_ID,) if word == END_ID else (*context, word)[-2:]
    assert len(followed) > 15
    for context, counts in followed.items():
        times = counts.total()
        for word in range(len(WORDS)):
            chance = 0.0 if word == START_ID else float(np.exp(backoff_log_prob(entries, context, word)))
            deviation = np.sqrt(max(chance * (1 - chance) / times, 1e-9))
            assert abs(counts[word] / times - chance) < 5 * deviation + 2 / times, (context, word)


def test_the_same_seed_draws_the_same_words_and_another_seed_others(arpa: Path) -> None:
    first, again, other = (list(islice(Drawing(arpa, seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_file_that_is_not_a_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text("no model\n", encoding="utf-8")
    with pytest.raises(LanguageModelError, match=r"words\.arpa"):
        Drawing(path)


def test_a_context_with_all_words_does_not_back_off(tmp_path: Path) -> None:
    path = tmp_path / "rounded.arpa"
    pairs = "".join(f"-0.4\t{first} {second}\n" for first in "ab" for second in "ab")  # 0.796 in all
    path.write_text(
        f"\n\\data\\\nngram 1=2\nngram 2=4\n\n\\1-grams:\n-0.3\ta\t-9\n-0.3\tb\t-9\n\n\\2-grams:\n{pairs}\n\\end\\\n",
        encoding="utf-8",
    )
    assert set(islice(Drawing(path), 50)) == {"a", "b"}
