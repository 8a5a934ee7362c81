"""Slots of the quantized network: outputs, independence of rows, and states."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.audio.mel import mel_filters
from model.config import ENGLISH
from model.int8.quantized import QuantizedNetwork
from model.int8.slots import BLOCK, CHUNKS, Int8Slots, PackedNetwork
from model.torch_model import TorchModel
from model.torch_network.network import LogMel
from tests.support.networks.quantized_networks import PHONES, random_quantized, random_slots
from tutti_asr_lab.training.quantization.quantize import quantize
from tutti_asr_lab.training.quantization.simulated import SimulatedNetwork

STEPS = 6


def noise(streams, seed=5, steps=STEPS):
    """Return PCM of some streams, (streams, steps, samples) int16, of different loudness."""
    random = np.random.default_rng(seed)
    loudness = 10.0 ** random.uniform(1, 4, (streams, 1, 1))
    return np.clip(random.normal(0, loudness, (streams, steps, 1_280)), -32_768, 32_767).astype(np.int16)


def alone(slots, pcm, slot=0):
    """Return log-probs of one stream alone, (steps, frames, outputs)."""
    slots.reset(slot)
    outputs = []
    for step in pcm:
        slots.inputs[0] = step
        outputs.append(slots.run([slot])[0])
    return np.stack(outputs)


@pytest.mark.parametrize("phones", [(), PHONES])
def test_outputs_are_those_of_the_simulation_in_torch(phones):
    """Equal except for inputs that float rounding moves to an adjacent integer."""
    pcm = noise(8)
    simulated = SimulatedNetwork(random_quantized(phones=phones)).eval()
    with torch.inference_mode():
        expected, _ = simulated(torch.from_numpy(pcm.reshape(8, -1)), simulated.fresh_state(8))
    slots = random_slots(phones=phones)
    found = np.stack([alone(slots, stream).reshape(-1, expected.shape[2]) for stream in pcm])
    difference = np.abs(found - expected.numpy())
    assert difference.max() < 0.05
    assert np.median(difference) < 2e-3


@pytest.mark.parametrize(("letters", "phones"), [(29, 1), (29, 41), (16, 15), (17, 64)])
def test_probabilities_of_letters_and_of_phones_sum_to_one_each(letters, phones):
    """Widths at, below and above the boundaries of vectors and panels."""
    sizes = {"vocabulary": ENGLISH[:letters], "phones": tuple(map(str, range(phones)))}
    network = quantize(TorchModel.random(**sizes).network, list(noise(1, steps=12)[0]))
    slots = Int8Slots(PackedNetwork(network), capacity=1, largest=1)
    found = np.exp(alone(slots, noise(1)[0]).astype(np.float64))
    assert found.shape == (STEPS, 2, letters + 1 + phones)
    for part in (found[..., :letters], found[..., letters:]):
        assert np.abs(part.sum(axis=-1) - 1).max() < 1e-6


def test_phones_do_not_change_the_bits_of_the_letters():
    """The networks differ only in the rows of the head for phones."""
    with_phones = random_quantized(phones=PHONES)
    letters = len(with_phones.config.vocabulary)
    head = with_phones.products["head"]
    cut = {name: getattr(head, name)[:letters] for name in ("weight", "scale", "bias")}
    products = {**with_phones.products, "head": dataclasses.replace(head, **cut)}
    config = dataclasses.replace(with_phones.config, phones=())
    without = QuantizedNetwork(config, products, with_phones.tensors)
    slots = Int8Slots(PackedNetwork(without), capacity=1, largest=1)
    pcm = noise(1)[0]
    assert (alone(random_slots(phones=PHONES), pcm)[..., :letters] == alone(slots, pcm)).all()


def test_features_that_are_carried_over_are_those_of_the_network():
    network, slots, pcm = random_quantized(), random_slots(), noise(1)[0]
    alone(slots, pcm)
    features = LogMel(network.config, mel_filters(network.config))
    features.mean.copy_(torch.from_numpy(network.tensors["features.mean"]))
    features.scale.copy_(torch.from_numpy(network.tensors["features.scale"]))
    overlap = torch.zeros(1, network.config.window_samples - network.config.hop_samples, dtype=torch.int16)
    expected = features(torch.from_numpy(pcm.reshape(1, -1)), overlap)[0][0, -4:].numpy()
    product = network.products["conv0"]
    wanted = np.clip(np.rint(expected / product.input_scale) + product.input_zero, 0, 255)
    start = slots._network.fields.conv0
    kept = np.frombuffer(slots.export(0), np.uint8)[start : start + wanted.size].reshape(wanted.shape)
    assert np.abs(kept.astype(int) - wanted).max() <= 1
    assert (kept == wanted).mean() > 0.98


@settings(max_examples=25, deadline=None)
@given(data=st.data(), phones=st.sampled_from([(), PHONES]))
def test_a_row_has_the_same_bits_in_any_batch_and_position(data, phones):
    streams = data.draw(st.integers(2, 40))
    pcm = noise(streams)
    slots = random_slots(phones=phones)
    expected = [alone(slots, stream) for stream in pcm]
    places = data.draw(st.permutations(range(40)))[:streams]
    for place in places:
        slots.reset(place)
    done = [0] * streams
    while any(count < STEPS for count in done):
        ready = [i for i in range(streams) if done[i] < STEPS]
        batch = data.draw(st.permutations(ready))[: data.draw(st.integers(1, len(ready)))]
        for row, i in enumerate(batch):
            slots.inputs[row] = pcm[i, done[i]]
        outputs = slots.run([places[i] for i in batch])
        for row, i in enumerate(batch):
            assert (outputs[row] == expected[i][done[i]]).all()
            done[i] += 1


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_any_division_among_threads_gives_the_same_bits(threads):
    pcm = noise(100, steps=3)
    one = random_slots(capacity=100, largest=100)
    several = random_slots(capacity=100, largest=100, threads=threads)
    for step in range(3):
        one.inputs[:] = several.inputs[:] = pcm[:, step]
        assert (one.run(range(100)) == several.run(range(100))).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("steps", CHUNKS)
def test_a_chunk_is_bit_identical_to_single_steps(steps, threads):
    """In full and partial blocks, after and before single steps."""
    streams = BLOCK // steps + 3
    pcm = noise(streams, steps=steps + 2)
    slots = random_slots(capacity=streams * steps, largest=streams * steps, threads=threads)
    expected = [alone(slots, stream) for stream in pcm]
    for slot in range(streams):
        slots.reset(slot)
    order = list(range(0, streams, 2)) + list(range(1, streams, 2))
    at = 0
    for count in (1, steps, 1):
        slots.inputs[: streams * count] = pcm[order, at : at + count].reshape(-1, pcm.shape[2])
        found = slots.run(order, count).reshape(streams, count, *expected[0].shape[1:])
        for row, stream in enumerate(order):
            assert np.array_equal(found[row], expected[stream][at : at + count])
        at += count


def test_chunks_are_offered_up_to_the_rows_of_a_batch():
    for largest, lengths in ((1, [1]), (3, [1, 2]), (8, [1, 2, 4, 8]), (100, [1, 2, 4, 8])):
        assert random_slots(capacity=largest, largest=largest).chunk_steps == lengths
