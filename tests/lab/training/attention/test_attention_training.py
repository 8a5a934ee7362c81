"""Fine-tuning of the attention network: it learns, resumes to the same weights, and refuses another recipe."""

from __future__ import annotations

import json
import math

import pytest
import torch

from model.attention_config import AttentionConfig
from model.errors import TrainingError
from model.recordings import read_manifest
from tests.support.needs import need_programs
from tests.support.networks.attention_networks import SIZES, quantized_network, random_network
from tests.support.training.tones import RATE, recipe, write_tones
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.trainer import fit
from tutti_asr_lab.training.attention.dequantize import dequantized
from tutti_asr_lab.training.attention.network import seen
from tutti_asr_lab.training.attention.train import FineTuning, Run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return recordings of tones."""
    need_programs("espeak-ng")
    folder = write_tones(tmp_path_factory.mktemp("tones"))
    return Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", RATE)


def run_of(corpus, **changes):
    """Return a run over random weights, with features fitted."""
    chosen = recipe(
        **{"updates": 60, "micro_batch_s": 10.0, "matrix_lr": 3e-3, "phone_weight": 0.5, "precision": "bf16"} | changes
    )
    config = AttentionConfig(sample_rate=RATE, mel_high_hz=RATE / 2 - 400, **SIZES)
    run = Run(config, FineTuning(chosen, head_factor=1.0), corpus, [], ())
    fit(run.network.features, corpus, run.batches, chosen)
    run.average.load_state_dict(run.network.state_dict())
    return run


def losses(run):
    """Train to the end; return the losses over phones and letters of each update."""
    run.network.train()
    return [run.update(batches) for _, batches in run.batches.ahead(run.jobs())]


def test_a_run_learns(corpus):
    """The losses fall, also with the probability of all label sequences in them."""
    figures = losses(run_of(corpus, denominator=0.5, denominator_from=30))
    assert len(figures) == 60
    for column in zip(*figures, strict=True):
        assert math.isfinite(sum(column))
        assert sum(column[-10:]) < 0.8 * sum(column[:10])


def test_a_resumed_run_ends_with_the_same_weights(corpus):
    """The position, the optimizer and the average are in its state."""
    whole = run_of(corpus, updates=6)
    losses(whole)
    first = run_of(corpus, updates=6)
    first.network.train()
    for number, batches in first.batches.ahead(first.jobs()):
        first.update(batches)
        if number == 3:
            break
    second = run_of(corpus, updates=6)
    second.resume(first.state_dict())
    losses(second)
    assert second.done == 6
    assert second.audio_s == whole.audio_s
    for name in ("network", "average"):
        one, other = whole.state_dict()[name], second.state_dict()[name]
        assert all((one[key] == other[key]).all() for key in one)


def test_another_recipe_does_not_resume(corpus):
    """The error names what differs."""
    saved = run_of(corpus, updates=6).state_dict()
    with pytest.raises(TrainingError, match="another recipe"):
        run_of(corpus, updates=7).resume(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a recipe of fine-tuning"),
        ('{"head": 1}', "'head' is not a key"),
        ('{"model": {"widht": 1}}', "did you mean 'width'"),
        ('{"recipe": {"updates": "many"}}', "Expected `int`"),
    ],
)
def test_a_wrong_recipe_is_refused_by_its_key(tmp_path, content, message):
    """Nothing of it is ignored."""
    path = tmp_path / "recipe.json"
    path.write_text(content)
    with pytest.raises(TrainingError, match=message):
        FineTuning.read(path)


def test_a_recipe_is_read_whole(tmp_path):
    """Its values reach the run."""
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"model": {"name": "n"}, "recipe": {"updates": 7}, "head_factor": 2.0, "left": 60}))
    config, tuning = FineTuning.read(path)
    assert (config.name, tuning.recipe.updates, tuning.head_factor, tuning.left) == ("n", 7, 2.0, 60)


def test_a_frame_sees_its_chunk_and_the_frames_to_the_left():
    """Chunks of three frames, four to the left; without chunks, the recording's frames."""
    keys = seen(9, torch.tensor([9, 5]), 3, 4)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in keys[[0, 4, 8]]] == [
        [0, 1, 2], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7, 8],
    ]  # fmt: skip
    assert seen(9, torch.tensor([9, 5]), 0, 4).sum(-1).flatten().tolist() == [9, 5]


@torch.no_grad()
def test_no_frame_after_its_chunk_changes_an_output():
    """Neither by attention nor by convolution; frames before it do."""
    network = random_network()
    features = torch.randn(1, 80, 80)
    expected = network(features, torch.tensor([40]), 8, 24)
    changed = features.clone()
    changed[:, 48:] += 1.0  # frame 24 on, and frame 23 through the stem
    outputs = network(changed, torch.tensor([40]), 8, 24)
    assert (outputs[:, :16] == expected[:, :16]).all()
    assert (outputs[:, 24:] != expected[:, 24:]).any(-1).all()
    whole = network(changed, torch.tensor([40])) != network(features, torch.tensor([40]))
    assert whole.any(-1).all()


@torch.no_grad()
def test_training_continues_from_the_values_of_integers():
    """Only rounding lies between the network and what is read back."""
    network = random_network()
    features, frames = torch.randn(1, 80, 80), torch.tensor([40])
    expected = network(features, frames, 8, 24)
    outputs = dequantized(quantized_network())(features, frames, 8, 24)
    assert (outputs - expected).std() < 0.05 * expected.std()
