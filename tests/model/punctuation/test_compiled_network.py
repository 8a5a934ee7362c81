"""The compiled network of the tagger: logits and marks against float64, any length, several threads, bad weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.errors import CheckpointError
from model.evaluation.digest import SAMPLES
from model.punctuation.compiled_network import TABLES, CompiledNetwork
from model.punctuation.marks import MARKS
from model.punctuation.step import DILATIONS
from model.punctuation.tagger import shipped_tagger
from model.punctuation.weights import SHIPPED, Vocabulary, load
from model.recordings import read_manifest

Floats = NDArray[np.float64]
WORDS = [word for one in read_manifest(SAMPLES) for word in one.text.split()]


@cache
def weights() -> tuple[Mapping[str, NDArray[Any]], Vocabulary]:
    return load(SHIPPED)


def matrix(name: str) -> Floats:
    tensors = weights()[0]
    scaled: Floats = tensors[f"{name}.weight"] * tensors[f"{name}.weight.scale"][:, None].astype(np.float64)
    return scaled


def linear(name: str, inputs: Floats) -> Floats:
    result: Floats = inputs @ matrix(name).T + weights()[0][f"{name}.bias"]
    return result


def norm(name: str, inputs: Floats) -> Floats:
    tensors = weights()[0]
    centered = inputs - inputs.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)
    result: Floats = centered / deviation * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
    return result


def in_float64(words: Sequence[str]) -> Floats:
    """Logits (T, 5) by numpy, as the network was trained."""
    rows, count = weights()[1].rows(words), len(words)
    hidden = linear("input", np.sum([matrix(name)[rows[:, i]] for i, name in enumerate(TABLES)], axis=0))
    for i, reach in enumerate(DILATIONS):
        wide = np.pad(norm(f"blocks.{i}.norm", hidden), ((reach, reach), (0, 0)))
        around = np.concatenate([wide[shift : shift + count] for shift in (0, reach, 2 * reach)], axis=1)
        hidden = hidden + linear(f"blocks.{i}.out", np.maximum(linear(f"blocks.{i}.mix", around), 0.0))
    return linear("output", norm("norm", hidden))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 16, 17, 30, 200, 417])
def test_logits_are_those_of_float64_for_any_number_of_words(count: int) -> None:
    words = (WORDS * 9)[:count]
    found = shipped_tagger().logits(words)
    assert found.shape == (count, len(MARKS) + 1)
    np.testing.assert_allclose(found, in_float64(words), atol=1e-3)


def test_marks_and_capitals_are_those_of_float64() -> None:
    for first in range(0, len(WORDS), 23):
        words = WORDS[first : first + 23]
        found, expected = shipped_tagger().logits(words), in_float64(words)
        assert found[:, :4].argmax(axis=1).tolist() == expected[:, :4].argmax(axis=1).tolist()
        assert (found[:, 4] > 0).tolist() == (expected[:, 4] > 0).tolist()


def test_no_words_have_no_logits() -> None:
    assert shipped_tagger().logits([]).shape == (0, len(MARKS) + 1)


def test_several_threads_may_use_one_tagger() -> None:
    texts = [WORDS[i : i + 40] for i in range(0, 120, 3)]
    alone = [shipped_tagger().logits(text).tobytes() for text in texts]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            assert [each.tobytes() for each in threads.map(shipped_tagger().logits, texts)] == alone


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("words.weight", np.ones((20, 64), np.int8)),
        ("blocks.2.mix.weight", np.ones((128, 128), np.int8)),
        ("blocks.2.norm.bias", np.ones(128, np.float64)),
        ("output.weight", np.ones((5, 128), np.float32)),
    ],
)
def test_tensors_of_another_shape_or_type_are_refused(name: str, tensor: NDArray[Any]) -> None:
    tensors, vocabulary = weights()
    with pytest.raises(CheckpointError, match=name):
        CompiledNetwork({**tensors, name: tensor}, len(vocabulary.words))


def test_sizes_that_the_code_cannot_compute_are_refused() -> None:
    tensors, vocabulary = weights()
    wide = {name: np.concatenate([each] * 2) if name == "input.bias" else each for name, each in tensors.items()}
    with pytest.raises(CheckpointError, match="shape"):
        CompiledNetwork(wide, len(vocabulary.words))
