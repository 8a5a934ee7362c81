"""The linear layer of the network of voices: trained to part voices, and written into the file for the server."""

import numpy as np
import pytest
import torch

from model.speakers.slot_model import SHIPPED, STEP_SAMPLES, SpeakerModel, SpeakerWeights
from model.speakers.step import HIDDEN, SIZE
from tutti_asr_lab.training.speakers.conversations import Conversation, Spoken
from tutti_asr_lab.training.speakers.linear import Turns, layer_of, loss_of, trained, turns_of, vectors_of, with_layer


def conversation(seed):
    """Two voices that differ in few outputs, in the same room: a common part is added to all."""
    dice = torch.Generator().manual_seed(seed)
    voices = torch.arange(2).repeat_interleave(8).repeat(2)
    outputs = 0.3 * torch.randn(32, HIDDEN, generator=dice)
    outputs[:, :8] += 0.5 * (voices[:, None] * 2 - 1)
    return Turns(outputs, voices, torch.arange(4).repeat_interleave(8))


@pytest.fixture(scope="module")
def weights():
    return SpeakerWeights.load()


def test_training_parts_voices_that_were_not_trained_on(weights):
    start = layer_of(weights)
    before = loss_of(conversation(99), start)
    layer = trained([conversation(seed) for seed in range(8)], start, epochs=16)
    assert loss_of(conversation(99), layer) < 0.95 * before


def test_the_layer_in_the_file_is_the_one_of_the_server(weights, tmp_path):
    path, (weight, bias, mean) = tmp_path / "voices.safetensors", layer_of(weights)
    path.write_bytes(with_layer(SHIPPED, (2 * weight, bias + 1, -mean)))
    other = SpeakerWeights.load(path)
    for found, expected in zip(layer_of(other), (2 * weight, bias + 1, -mean), strict=True):
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    assert other.products[0].weight.tobytes() == weights.products[0].weight.tobytes()


def test_outputs_and_the_layer_give_the_vectors_of_the_server(weights):
    dice = np.random.default_rng(0)
    steps = 25
    pcm = np.concatenate([np.zeros(STEP_SAMPLES), dice.normal(0, 2_000, steps * STEP_SAMPLES)]).astype(np.int16)
    half_s = len(pcm) / 32_000
    spoken = (Spoken(0.0, half_s, 3), Spoken(half_s, 2 * half_s, 5))
    model = SpeakerModel(weights, 1)
    given = turns_of(Conversation(pcm, spoken, ()), model)
    assert given.voices.tolist() == [3] * 3 + [5], "the middle of the last window is in the second half"
    assert given.turns.tolist() == [0] * 3 + [1]
    model.reset(0)
    served = []
    for step in range(len(pcm) // STEP_SAMPLES):
        model.inputs[0] = pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
        row = model.run([0])[0]
        if row[0]:
            served.append(row[1:])
    vectors = vectors_of(given.outputs, layer_of(weights)).numpy()
    assert vectors.shape == (len(served), SIZE)
    assert np.abs(vectors - np.stack(served)).max() < 1e-4
