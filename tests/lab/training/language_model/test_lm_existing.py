"""Existing models as sources of a mixture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams, read_arpa
from model.lm.language_model import LanguageModel
from model.lm.trie import SPECIAL_WORDS
from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
from tutti_asr_lab.training.language_model.existing import over_vocabulary, respelled, word_counts
from tutti_asr_lab.training.language_model.train import TrainingOptions, train

ARPA = """\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-1.0\t<unk>\t0.0
-99\t<s>\t-0.3010
-0.7\t</s>\t0.0
-0.5\tcold\t-0.2
-0.6\tsea\t-0.1
-0.9\twhale\t-0.3

\\2-grams:
-0.3\t<s> cold\t-0.05
-0.4\tcold sea\t-0.15
-0.5\tcold </s>\t0.0
-0.2\tsea cold\t0.0
-0.6\twhale sea\t0.0

\\3-grams:
-0.1\t<s> cold sea
-0.25\tcold sea cold

\\end\\
"""


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "sea.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


def by_words(model: Ngrams) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    return [
        {
            tuple(model.words[i] for i in ids): (round(float(log_prob), 3), round(float(backoff), 3))
            for ids, log_prob, backoff in zip(table.ids, table.log_prob, table.backoff, strict=True)
        }
        for table in model.tables
    ]


def test_words_are_respelled_and_ambiguous_spellings_are_dropped(arpa: Path) -> None:
    spelled = {"cold": "cold", "sea": "cold", "whale": "white whale"}
    assert respelled(read_arpa(arpa), lambda word: spelled[word]).words[len(SPECIAL_WORDS) :] == ("cold", "", "")


def test_counts_are_proportional_to_the_probabilities_of_words(arpa: Path) -> None:
    counts = word_counts(read_arpa(arpa))
    assert counts["cold"] / counts["whale"] == pytest.approx(10**0.4, rel=1e-4)
    assert not set(SPECIAL_WORDS) & set(counts)


def test_over_another_vocabulary_every_context_sums_to_one(arpa: Path) -> None:
    vocabulary = (*SPECIAL_WORDS, "cold", "harpoon", "sea")
    tables = over_vocabulary(read_arpa(arpa), vocabulary, order=2)
    assert by_words(Ngrams(vocabulary, tuple(tables)))[1].keys() == {
        ("<s>", "cold"),
        ("cold", "sea"),
        ("cold", "</s>"),
        ("sea", "cold"),
    }
    unigrams = np.exp(tables[0].log_prob.astype(np.float64))
    assert unigrams.sum() == pytest.approx(1.0, abs=1e-6)
    assert unigrams[vocabulary.index("harpoon")] < unigrams[vocabulary.index("sea")]
    for context in ("<s>", "cold", "sea"):
        start = vocabulary.index(context)
        after = {
            int(ids[1]): float(p) for ids, p in zip(tables[1].ids, tables[1].log_prob, strict=True) if ids[0] == start
        }
        backoff = float(np.exp(tables[0].backoff[start]))
        rest = sum(unigrams[i] for i in range(len(vocabulary)) if i not in after and vocabulary[i] != "<s>")
        assert sum(np.exp(list(after.values()))) + backoff * rest == pytest.approx(1.0, abs=1e-5)


def test_a_model_is_mixed_with_a_text_by_weights_tuned_on_a_held_out_text(arpa: Path, tmp_path: Path) -> None:
    text, held_out, out = tmp_path / "house.txt", tmp_path / "held-out.txt", tmp_path / "mixed.arpa"
    text.write_text("turn on the light\nturn off the light\n" * 5, encoding="utf-8")
    held_out.write_text("cold sea cold\nturn on the light\n", encoding="utf-8")
    write_arpa(out, train([text, arpa], TrainingOptions(order=3, held_out=(held_out,)), lambda _: None))
    mixed = LanguageModel.load(out)
    assert {"cold", "whale", "light"} <= set(mixed.words)
    assert mixed.score(["cold", "sea"])[1] > mixed.score(["cold", "light"])[1]


def test_a_model_without_weights_or_a_held_out_text_is_refused(arpa: Path) -> None:
    with pytest.raises(LanguageModelError, match="to mix counts and models with texts, give weights"):
        train([arpa], TrainingOptions(order=2), lambda _: None)
