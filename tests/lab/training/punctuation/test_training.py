"""Training examples, a small training run, and equal outputs of the compiled tagger and the torch network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.errors import CheckpointError, TrainingError
from model.punctuation.marks import ENDS, NONE, parse
from model.punctuation.network import TaggerNetwork
from model.punctuation.tagger import Tagger
from model.punctuation.weights import UNKNOWN, Vocabulary, load, save
from tutti_asr_lab.training.punctuation import train as training
from tutti_asr_lab.training.punctuation.corpus import (
    IGNORED,
    LONGEST,
    Confusions,
    Sampler,
    Text,
    as_text,
    most_frequent,
    read_tokens,
)

LINES = ["Where is Paul? He is here, I think.", "No.", "Well, when did you see him, and why? Yesterday, at noon."]
VOCABULARY = most_frequent([line.split() for line in LINES], 100)


def text(name: str = "book") -> Text:
    return as_text(name, [word for line in LINES * 40 for word in line.split()], VOCABULARY)


def arrays(network: TaggerNetwork) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def test_words_outside_the_vocabulary_keep_their_ending_and_beginning() -> None:
    known, unknown = VOCABULARY.rows(["where"])[0], VOCABULARY.rows(["whence"])[0]
    assert known[0] != UNKNOWN
    assert unknown[0] == UNKNOWN
    assert (known[2], known[1] == unknown[1]) == (unknown[2], False)


def test_finals_are_whole_sentences_or_have_an_ignored_last_mark() -> None:
    book = text()
    sampler = Sampler([book], {}, Confusions(VOCABULARY, [book]), seed=1)
    for final in sampler.draw(400):
        assert 0 < len(final.marks) == len(final.rows) == len(final.capitals) <= LONGEST
        assert final.marks[-1] in (*ENDS, IGNORED)
        assert IGNORED not in final.marks[:-1]


def test_the_mark_of_a_deleted_word_moves_to_the_word_before() -> None:
    book = as_text(
        "book", ["a", "b,", "c", "d,", "e", "f,", "g", "h,", "i", "j,", "k", "l,", "m", "n,", "o", "p."], VOCABULARY
    )
    confusions = Confusions(VOCABULARY, [book])
    for seed in range(200):
        final = confusions.confuse(book, np.random.default_rng(seed), rate=0.5)  # type: ignore[arg-type]
        assert final.marks[-1] == book.marks[-1]
        assert np.count_nonzero(final.marks[:-1] != NONE) >= 7 - (len(book.marks) - len(final.marks))


def test_the_compiled_tagger_equals_the_torch_network(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = TaggerNetwork(len(VOCABULARY.words)).eval()
    save(tmp_path / "a.safetensors", arrays(network), VOCABULARY)
    tensors, vocabulary = load(tmp_path / "a.safetensors")
    assert vocabulary == VOCABULARY
    tagger = Tagger(tensors, vocabulary)
    words = [word.word for line in LINES for word in parse(line)]
    for name in network.state_dict():  # the same integers in both
        if name + ".scale" in tensors:
            exact = tensors[name].astype(np.float32) * tensors[name + ".scale"][:, None]
            network.state_dict()[name].copy_(torch.from_numpy(exact))
    rows = torch.from_numpy(vocabulary.rows(words).astype(np.int64))[None]
    padded = torch.cat([rows, torch.ones(1, 5, 3, dtype=torch.int64)], 1)
    valid = torch.arange(padded.shape[1])[None] < rows.shape[1]
    with torch.no_grad():
        expected = network(padded, valid)[0, : len(words)].numpy()
    # Inputs of products are rounded to 16 bits: steps of 3e-5 of the largest.
    np.testing.assert_allclose(tagger.logits(words), expected, atol=5e-4)


def test_a_small_run_learns_and_is_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "DRAWN", training.FINALS)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "book.txt").write_text("\n".join(LINES * 40) + "\n")
    for name in ("a", "b"):
        training.train(tmp_path, tmp_path / f"{name}.safetensors", updates=40)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    found = Tagger.from_file(tmp_path / "a.safetensors").tag(["where", "is", "paul", "he", "is", "here", "i", "think"])
    assert " ".join(str(word) for word in found) == "Where is Paul? He is here, I think."


@pytest.mark.parametrize("content", [None, b"", b"no weights"])
def test_the_error_names_damaged_weights(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "damaged.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Tagger.from_file(path)
    save(path, {"words.weight": np.ones((2, 2), np.float32)}, Vocabulary.of(["a"]))
    with pytest.raises(CheckpointError, match="lack"):
        Tagger.from_file(path)


def test_the_error_names_a_missing_text(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="gone"):
        read_tokens(tmp_path / "gone.txt")
