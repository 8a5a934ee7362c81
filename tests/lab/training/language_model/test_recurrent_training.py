"""Recurrent language model from a text to 8-bit weights: pieces, training, commands."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from model.ctc.rescoring import Scores
from model.lm.recurrent.model import RecurrentLanguageModel
from model.lm.recurrent.pieces import END
from model.lm.text_model import Counts
from tutti_asr_lab.training.language_model.recurrent import quantize, train, tune
from tutti_asr_lab.training.language_model.recurrent.network import RecurrentNetwork
from tutti_asr_lab.training.language_model.recurrent.pieces import learn_pieces
from tutti_asr_lab.training.language_model.recurrent.tune import Choice, best, word_error_rate

SENTENCES = ("the cat sat on the mat", "a dog ran in the rain", "the man saw a cat", "rain fell on a hat")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(SENTENCES * 700) + "\n", encoding="utf-8")
    return path


def test_frequent_pairs_become_pieces() -> None:
    words = Counter(word for line in SENTENCES for word in line.split())
    pieces = learn_pieces(words | Counter({"x-ray": 99, "mat": 50}), 60)
    longer = [symbol for symbol in pieces.symbols if len(symbol.lstrip("_")) > 1]
    assert len(pieces) == 60
    assert longer[0] == "at"  # in mat, cat, sat and hat
    assert "_mat" in longer
    assert len(learn_pieces(words, 10_000)) < 200, "no pair is left"


def test_lines_become_streams_with_an_end_after_each(text: Path) -> None:
    pieces = learn_pieces(Counter(text.read_text(encoding="utf-8").split()), 96)
    lines = text.read_text(encoding="utf-8").splitlines()
    streams = train.parallel(lines, pieces, 1, streams=8)
    assert streams.shape[1] == 8
    assert int((streams == END).sum()) == pytest.approx(len(lines), rel=0.01)
    assert torch.equal(streams, train.parallel(lines, pieces, 1, streams=8))
    assert not torch.equal(streams, train.parallel(lines, pieces, 2, streams=8))
    with pytest.raises(ValueError, match="too few for 8 streams"):
        train.parallel(lines[:20], pieces, 1, streams=8)


def run(monkeypatch: pytest.MonkeyPatch, module: object, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    module.main()  # type: ignore[attr-defined]


def test_from_a_text_to_a_model_in_8_bits(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    floats, integers = tmp_path / "floats.safetensors", tmp_path / "integers.safetensors"
    options = ("--pieces", 64, "--hidden", 32, "--updates", 250, "--rate", 0.02)
    run(monkeypatch, train, f"{text}:2", "--held-out", text, *options, "--out", floats)
    said = capsys.readouterr().out
    assert "5600 sentences" in said
    assert "update 50/250 loss" in said
    assert "update 250 held-out loss" in said
    run(monkeypatch, quantize, floats, "--text", text, "--out", integers)
    model = RecurrentLanguageModel.load(integers)
    assert (model.counts, model.hidden) == (Counts(), 32)
    likely, mixed = model.score([sentence.split() for sentence in (SENTENCES[0], "mat the on sat cat the")])
    assert likely > mixed + 5
    network, pieces = train.load_network(floats)
    for sentence in SENTENCES:
        numbers = torch.from_numpy(pieces.of_text(sentence.split()).astype(np.int64))
        before = torch.cat([torch.tensor([END]), numbers[:-1]])[:, None]
        with torch.no_grad():
            logits, _ = network(before, torch.zeros(1, 32))
        in_floats = float(logits[:, 0].log_softmax(-1).gather(1, numbers[:, None]).sum())
        assert float(model.score([sentence.split()])[0]) == pytest.approx(in_floats, abs=0.25)


def test_a_run_continues_from_another_ones_weights_and_pieces(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, other = (tmp_path / f"{name}.safetensors" for name in ("first", "second", "other"))
    options = ("--held-out", text, "--rate", 0.02)
    run(monkeypatch, train, text, *options, "--pieces", 64, "--hidden", 32, "--updates", 150, "--out", first)
    other.with_suffix(".txt").write_text("another text\n" + text.read_text(encoding="utf-8") * 2, encoding="utf-8")
    run(monkeypatch, train, other.with_suffix(".txt"), *options, "--updates", 50, "--init", first, "--out", second)
    said = [line for line in capsys.readouterr().out.splitlines() if "held-out loss" in line]
    losses = [float(line.split("loss ")[1].split()[0]) for line in said]
    assert losses[1] < losses[0]
    network, pieces = train.load_network(second)
    assert network.hidden == 32
    assert pieces.symbols == train.load_network(first)[1].symbols
    other.write_bytes(first.read_bytes())
    described = json.loads(first.with_suffix(".json").read_text(encoding="utf-8")) | {"hidden": 16}
    other.with_suffix(".json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(SystemExit, match="are not a float32 recurrent language model"):
        run(monkeypatch, train, text, "--init", other, "--out", second)


def test_the_same_seed_makes_the_same_weights() -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(3)
        network = RecurrentNetwork(8, 16)
        streams = torch.randint(0, 8, (200, 4), generator=torch.Generator().manual_seed(1))
        kept: list[int] = []
        train.run(network, streams, None, train.Settings(updates=6), lambda: kept.append(1))
        assert kept == [1]
        return network.head.weight.detach()

    assert torch.equal(trained(), trained())


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (train, ["none.txt", "--out", "x.safetensors"], "No such file"),
        (quantize, ["none.safetensors", "--text", "none.txt", "--out", "x.safetensors"], "No such file"),
        (tune, ["none.safetensors", "--manifest", "none.jsonl"], "cannot read recurrent language model none"),
    ],
)
def test_the_error_names_a_missing_file(
    module: object, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        run(monkeypatch, module, *arguments)


def test_weights_are_chosen_by_the_errors_of_their_best_texts() -> None:
    """The search prefers the first text, the model the second; the third has more words."""
    errors, lengths = np.array([2, 1, 0], np.int32), np.array([4, 4, 6], np.int32)
    search, log_probs, ngrams = np.array([0.0, -1.0, -1.6]), np.array([-9.0, -4.0, -5.5]), np.array([-3.0, -3.0, -9.0])
    choice = Choice(4, errors, Scores(search, log_probs, ngrams, lengths))
    assert word_error_rate([choice], Counts()) == 0.5
    assert word_error_rate([choice], Counts(0.3)) == 0.25
    assert word_error_rate([choice], Counts(0.3, word_bonus=1.0)) == 0.0
    assert word_error_rate([choice], Counts(0.3, ngram_discount=0.5)) == 0.0
    assert word_error_rate([choice], best([choice])) == 0.0
    spoiled = Choice(4, np.array([0, 9, 9], np.int32), choice.scores)
    assert word_error_rate([spoiled], best([spoiled])) == 0.0
