"""The encoder of voices in 8 bits: its file loads in the server's model, whose vectors are near the float encoder's."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from model.speakers.slot_model import STEP_SAMPLES, SpeakerModel, SpeakerWeights
from model.speakers.step import ENDS, HOP, LEVEL, OVERLAP, REMEMBERED
from tutti_asr_lab.training.speakers.convert import tensors_of
from tutti_asr_lab.training.speakers.encoder import Encoder, energies

STEPS = ENDS + 1  # the first is silent


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(3)
    encoder = Encoder()
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            weight.mul_(30 if name == "lstm.weight_ih_l0" else 3)  # as trained ones, whose outputs reach ±1
    return encoder.eval()


@pytest.fixture(scope="module")
def pcm():
    """A silent step, and then noise in bands that change, which counts as voice."""
    dice = np.random.default_rng(1)
    parts = [np.zeros(STEP_SAMPLES)]
    for _ in range(1, STEPS):
        width = int(dice.integers(1, 12))
        noise = np.convolve(dice.normal(size=STEP_SAMPLES + width - 1), np.ones(width) / width**0.5, "valid")
        parts.append(noise * dice.uniform(1_500, 2_500))
    return np.concatenate(parts).astype(np.int16)


def served_vectors(path, pcm):
    """Return the number of steps at each vector of the first run, and the vectors."""
    model = SpeakerModel(SpeakerWeights.load(path), 1)
    ends, vectors = [], []
    for step in range(STEPS):
        model.inputs[0] = pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
        (row,) = model.run([0])
        if row[0]:
            ends.append(step + 1)
            vectors.append(row[1:])
    return ends, np.array(vectors)


def float_vectors(encoder, ends, pcm):
    """Return the vectors of the first run after these steps."""
    mels = energies(np.concatenate([np.zeros(OVERLAP), pcm]).astype(np.float32) / 32_768)
    steps, level = mels.reshape(STEPS, -1, mels.shape[1]), 0.0
    for step, part in enumerate(steps[1:], 1):
        energy = float((pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES].astype(np.float64) ** 2).sum())
        level += (energy - level) / min(step, REMEMBERED)
        np.multiply(part, LEVEL / level, out=part)
    windows = [steps[1:end].reshape(1, -1, mels.shape[1]) for end in ends]
    return np.concatenate([encoder.vectors(window) for window in windows])


def test_vectors_of_8_bits_are_near_those_of_floats(tmp_path, encoder, pcm):
    path = tmp_path / "voices.safetensors"
    path.write_bytes(save(tensors_of(encoder)))
    ends, served = served_vectors(path, pcm)
    assert ends == list(range(2 * HOP, STEPS + 1, HOP))
    floats = float_vectors(encoder, ends, pcm)
    assert np.sum(served * floats, axis=1).min() > 0.99
    center = floats.mean(axis=0)
    own, other = served - center, floats - center
    likeness = (own @ other.T) / np.outer(np.linalg.norm(own, axis=1), np.linalg.norm(other, axis=1))
    assert likeness.diagonal().min() > 0.8
    assert likeness[~np.eye(len(ends), dtype=bool)].max() < 0.5


def test_the_mean_is_taken_from_vectors(tmp_path, encoder, pcm):
    tensors, path = tensors_of(encoder), tmp_path / "voices.safetensors"
    path.write_bytes(save(tensors))
    _, plain = served_vectors(path, pcm)
    center = plain.mean(axis=0)
    path.write_bytes(save(tensors | {"center": center}))
    _, served = served_vectors(path, pcm)
    expected = plain - center
    np.testing.assert_allclose(served, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4)
