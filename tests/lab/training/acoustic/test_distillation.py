"""Distillation: the teachers' mean, the divergence from it, and which teachers are refused."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from model import checkpoint
from model.errors import TrainingError
from model.recordings import read_manifest
from model.torch_network.checkpoint import save_network
from model.torch_network.network import Network
from tests.support.training.tones import PLAIN, RATE, TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.losses.distillation import Teachers, distillation_loss
from tutti_asr_lab.training.acoustic.run import Places, train
from tutti_asr_lab.training.acoustic.trainer import Trainer
from tutti_asr_lab.training.evaluation.whole import log_probs_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("tones"))


def network(seed, **changes):
    torch.manual_seed(seed)
    return Network(dataclasses.replace(TINY, **changes))


def features():
    return torch.randn(2, 4 * 14, TINY.mel_bins, generator=torch.Generator().manual_seed(2))


def trainer(folder, chosen, teachers):
    corpus = Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", RATE)
    made = Trainer(TINY, chosen, corpus, [], CPU, teachers=teachers)
    made.start_from(network(1))
    return made


def test_teachers_of_different_sizes_give_the_mean_of_their_probabilities():
    one, two = network(1, phones=("a", "k")), network(2, phones=("a", "k"), layers=2)
    both, alone = Teachers([one, two], CPU), [Teachers([each], CPU) for each in (one, two)]
    for mean, *each in zip(
        both(features(), torch.float32), *(a(features(), torch.float32) for a in alone), strict=True
    ):
        assert torch.allclose(mean.exp(), (each[0].exp() + each[1].exp()) / 2, atol=1e-6)
        assert torch.allclose(mean.exp().sum(-1), torch.ones(2, 12))
        assert not mean.requires_grad


def test_the_divergence_from_itself_is_zero_and_padding_has_no_gradient():
    taught, logits = torch.randn(2, 5, 4).log_softmax(-1), torch.randn(2, 5, 4).requires_grad_()
    frames = torch.tensor([5, 3])
    assert float(distillation_loss(taught, taught, frames)) == 0
    loss = distillation_loss(logits.log_softmax(-1), taught, frames)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient[0], (logits[0].softmax(-1) - taught[0].exp()).detach(), atol=1e-6)
    assert not gradient[1, 3:].any()


def test_a_network_learns_its_teachers_outputs(folder):
    teacher = network(2)
    with torch.no_grad():
        teacher.head.weight.mul_(8)  # more certain than random weights
    teacher.features.scale.mul_(0.5)  # its own statistics
    teacher.features.mean.sub_(2)
    made = trainer(folder, recipe(updates=40, distillation=1.0, micro_batch_s=10.0, augmentation=PLAIN), [teacher])
    recordings = [made.corpus.pcm(index) for index in range(8)]
    wanted = log_probs_of(teacher, recordings)

    def divergence():
        rows = zip(log_probs_of(made.network.eval(), recordings), wanted, strict=True)
        return sum(float((np.exp(taught) * (taught - own)).sum()) for own, taught in rows)

    before = divergence()
    for _ in made.run():
        pass
    assert divergence() < before / 4, "the texts are not used"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"phones": ("a",)}, "letters or phones"),
        ({"lookahead": 3}, "another lookahead"),
        ({"mel_low_hz": 40.0}, "other features"),
    ],
)
def test_a_teacher_of_other_outputs_or_features_is_refused_by_name(folder, changes, says):
    teacher = network(2, name="other", version="7", **changes)
    made = trainer(folder, recipe(updates=1, distillation=0.5), [teacher])
    with pytest.raises(TrainingError, match=f"other 7.*{says}"):
        next(made.run())


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_teachers_without_distillation_in_the_recipe_and_the_reverse_are_refused(folder, share):
    with pytest.raises(TrainingError, match="require each other"):
        trainer(folder, recipe(distillation=share), [] if share else [network(2)])


def test_a_run_loads_its_teachers_and_resumes_only_with_the_same_ones(folder, tmp_path):
    taught = [tmp_path / f"teacher-{seed}.safetensors" for seed in (2, 3)]
    for seed, path in enumerate(taught):
        save_network(network(seed), path)
    places = Places(
        [folder / "tones.jsonl"], [], [], tmp_path / "out.safetensors", folder / "cache", taught[0], teachers=taught
    )
    chosen = recipe(updates=2, distillation=0.5)

    def run(places):
        return train(TINY, chosen, places, processes=1, device="cpu", announce=lambda _: None)

    made = json.loads(run(places).with_suffix(".json").read_text(encoding="utf-8"))["training"]
    assert made["recipe"]["distillation"] == 0.5
    assert [each["sha256"] for each in made["teachers"]] == [checkpoint.outline(path)[1] for path in taught]
    with pytest.raises(TrainingError, match="another set of teachers"):
        run(dataclasses.replace(places, teachers=taught[:1]))
