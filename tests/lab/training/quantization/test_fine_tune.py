"""Fine-tuning: outputs approach the teacher's, within the limits of the integers."""

import itertools

import numpy as np
import soundfile
import torch

from model.recordings import Utterance
from tests.support.networks.small_networks import SMALL, noise, small_network
from tutti_asr_lab.training.acoustic.augment import Augmentation, Augmenter
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.quantization.calibration import in_rows
from tutti_asr_lab.training.quantization.fine_tune import ROWS, STEPS, Rates, fine_tune, speech
from tutti_asr_lab.training.quantization.quantize import quantize


def test_the_divergence_falls_and_the_integers_stay_within_their_limits():
    teacher, pcm = small_network(), in_rows(noise(), SMALL, steps=20)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    said = []
    start = quantize(teacher, noise())
    tuned = fine_tune(
        start, teacher, itertools.repeat(pcm), 50, rates=Rates(weights=0.05, rest=1e-3), announce=said.append
    )
    first, last = (float(line.split("divergence ")[1].split()[0]) for line in (said[0], said[-1]))
    assert said[-1].startswith("update 50/50 ")
    assert last < 0.8 * first
    assert all(np.abs(product.weight.astype(int)).max() <= 63 for product in tuned.products.values())
    assert any((tuned.products[name].weight != product.weight).any() for name, product in start.products.items())
    assert tuned.products["conv1"].input_scale != start.products["conv1"].input_scale
    assert tuned.products["conv1"].input_scale == float(np.float32(tuned.products["conv1"].input_scale))
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    np.testing.assert_array_equal(tuned.tensors["features.scale"], start.tensors["features.scale"])


def test_batches_are_full_rows_of_speech_and_deterministic(tmp_path):
    utterances = []
    for number, pcm in enumerate(noise(seconds=9.0)):
        soundfile.write(tmp_path / f"{number}.wav", pcm, SMALL.sample_rate)
        utterances.append(Utterance(tmp_path / f"{number}.wav", "a", "noise", f"s{number}", 3.0))
    corpus = Corpus(utterances, tmp_path / "cache", SMALL.sample_rate, jobs=1)

    def batch(seed):
        augmenter = Augmenter(Augmentation(), [], [], SMALL.sample_rate)
        return next(speech(corpus, augmenter, Recipe(seed=seed), SMALL))

    assert batch(1).shape == (ROWS, STEPS * SMALL.step_samples)
    assert batch(1).dtype == torch.int16
    assert torch.equal(batch(1), batch(1))
    assert not torch.equal(batch(1), batch(2))
