"""The attention network's compiled step: outputs, independence of rows and of what a slot held before, segments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import network as packing
from model.attention.checkpoint import AttentionModel, load_attention, save_attention
from model.attention.network import PackedAttention, PackedWeights, read_segment
from model.attention_config import StepForm
from model.errors import CheckpointError
from model.int8.slots import Int8Slots
from tests.support.networks.attention_networks import FORM, noise, quantized_network, random_network, stream_in_floats

STEPS = 10
FORMS = (
    FORM,
    StepForm(new=20, ahead=0, left=24),
    StepForm(new=8, ahead=4, left=104),
    StepForm(new=4, ahead=32, left=4),
)


def slots_of(form=FORM, capacity=12, threads=1, phones=41):
    """Return slots of the random network."""
    packed = PackedAttention(PackedWeights(quantized_network(form, phones)), form)
    return Int8Slots(packed, capacity=capacity, largest=capacity, threads=threads)


def outputs_of(slots, streams, order=None):
    """Step all streams (B, steps, samples) together, stream i in slot order[i]. Returns: (B, frames, outputs)."""
    order = list(range(len(streams))) if order is None else order
    for slot in order:
        slots.reset(slot)
    rows = []
    for step in range(streams.shape[1]):
        slots.inputs[: len(order)] = streams[:, step]
        rows.append(slots.run(order))
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_those_of_windows_in_floats(form):
    """A stream longer than the ring: frames before the audio, a filling ring, a full one."""
    steps = 200 // form.new
    pcm = noise(1, steps, form)
    expected = stream_in_floats(random_network(form), pcm.reshape(-1))
    outputs = outputs_of(slots_of(form), pcm)[0, form.ahead :]
    assert len(outputs) == len(expected)
    difference = np.abs(outputs - expected)
    assert np.median(difference) < 0.02
    assert difference.max() < 0.5
    assert np.median(np.abs(np.roll(outputs, 1, axis=0) - expected)) > 4 * np.median(difference)  # the check can fail


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(12)), st.integers(1, 12), st.sampled_from(FORMS[:2]))
def test_a_stream_has_the_same_bits_in_any_company(order, count, form):
    """In any slots, with any other streams."""
    streams = noise(count, STEPS, form)
    together = outputs_of(slots_of(form), streams, order[:count])
    for number in range(count):
        alone = outputs_of(slots_of(form), streams[number : number + 1])
        assert (alone[0] == together[number]).all()


def test_threads_do_not_change_the_bits():
    """A batch is divided among them."""
    streams = noise(12, STEPS)
    assert (outputs_of(slots_of(threads=3), streams) == outputs_of(slots_of(), streams)).all()


def test_a_reset_slot_has_forgotten_its_stream():
    """The new stream gets the bits of a slot that held none."""
    streams = noise(2, 20)
    slots = slots_of()
    outputs_of(slots, streams[:1])
    assert (outputs_of(slots, streams[1:]) == outputs_of(slots_of(), streams[1:])).all()


def test_an_exported_state_continues_in_another_slot():
    """In the middle of a stream, with the ring half full and full."""
    stream = noise(1, 30)
    expected = outputs_of(slots_of(), stream)
    for moved_after in (1, 2, 7, 20):
        slots = slots_of()
        begin = outputs_of(slots, stream[:, :moved_after])
        state, others = slots.export(0), slots_of()
        others.restore(5, state)
        rows = [begin]
        for step in range(moved_after, 30):
            others.inputs[0] = stream[0, step]
            rows.append(others.run([5]))
        assert (np.concatenate(rows, axis=1) == expected).all()


@pytest.mark.parametrize("phones", [0, 1, 41])
def test_probabilities_of_letters_and_of_phones_sum_to_one_each(phones):
    """A network without phones has one group."""
    outputs = np.exp(outputs_of(slots_of(phones=phones), noise(1, STEPS)).astype(np.float64))[0]
    letters = len(quantized_network(FORM, phones).config.vocabulary)
    assert outputs.shape[1] == letters + (1 + phones if phones else 0)
    for part in (outputs[:, :letters], outputs[:, letters:]) if phones else (outputs,):
        assert np.abs(part.sum(axis=-1) - 1).max() < 1e-6


@torch.no_grad()
def test_a_segment_is_read_with_all_of_it_as_context():
    """It is shorter than the reach, so its outputs are those of the network in floats without a mask."""
    pcm = noise(1, 20).reshape(-1)
    network = random_network()
    features = network.read(torch.from_numpy(pcm.copy())[None])
    frames = features.shape[1] // 2
    parts = network.parts(network(features, torch.tensor([frames]))[0])
    expected = torch.cat([part.log_softmax(-1) for part in parts], -1).numpy()
    outputs = read_segment(PackedWeights(quantized_network()), pcm)
    difference = np.abs(outputs - expected)
    assert np.median(difference) < 0.02
    assert difference.max() < 0.5


def test_a_long_segment_is_read_in_windows(monkeypatch):
    """Each frame sees its window and the neighbors of it, so frames inside are those of the window alone."""
    monkeypatch.setattr(packing, "LONGEST", 80)
    monkeypatch.setattr(packing, "NEIGHBORS", 20)
    weights = PackedWeights(quantized_network())
    pcm = noise(1, 25).reshape(-1)  # 200 frames: windows 0 to 100, 60 to 180, 140 to 200
    outputs = read_segment(weights, pcm)
    monkeypatch.setattr(packing, "LONGEST", 1_000)
    assert (outputs[80:160] == read_segment(weights, pcm[60 * 320 : 180 * 320])[20:100]).all()
    assert (outputs[160:] == read_segment(weights, pcm[140 * 320 :])[20:]).all()
    assert len(outputs) == 200


def test_a_frame_of_a_segment_attends_to_those_within_its_reach(monkeypatch):
    """Two blocks reach 2 * (20 + 50 + 7) frames, so the first ones do not depend on what comes after 180."""
    monkeypatch.setattr(packing, "REACH", 20)
    weights, pcm = PackedWeights(quantized_network()), noise(1, 40).reshape(-1)
    assert weights.config.blocks == 2
    changed = pcm.copy()
    changed[200 * 320 :] //= 2
    outputs, others = read_segment(weights, pcm), read_segment(weights, changed)
    assert (outputs[:16] == others[:16]).all()
    assert (outputs[150:200] != others[150:200]).any()
    monkeypatch.setattr(packing, "REACH", 320)
    assert (read_segment(weights, pcm)[:16] != read_segment(weights, changed)[:16]).any()


def test_no_audio_is_a_segment_without_frames():
    """Its outputs have the usual width."""
    assert read_segment(PackedWeights(quantized_network()), np.zeros(0, np.int16)).shape == (0, 71)


def test_the_model_delays_a_segment_as_a_stream():
    """Its reader drops the first frames of either."""
    model = AttentionModel(quantized_network(), "digest")
    pcm = noise(1, 20).reshape(-1)
    outputs = read_segment(PackedWeights(quantized_network()), pcm)
    delayed = model.read(pcm)
    assert len(delayed) == len(outputs)
    assert (delayed[FORM.ahead :] == outputs[: -FORM.ahead]).all()


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    """The outputs have the same bits."""
    path = tmp_path / "network.safetensors"
    save_attention(quantized_network(), path)
    streams = noise(2, STEPS)
    model = load_attention(path)
    assert model.config == quantized_network().config
    outputs = outputs_of(model.slots(capacity=2, largest=2), streams)
    assert (outputs == outputs_of(slots_of(), streams)).all()


def test_a_damaged_checkpoint_is_named(tmp_path):
    """A file of another network does not fit."""
    path = tmp_path / "network.safetensors"
    save_attention(quantized_network(), path)
    other = tmp_path / "other.safetensors"
    save_attention(quantized_network(phones=1), other)
    path.with_suffix(".json").write_bytes(other.with_suffix(".json").read_bytes())
    with pytest.raises(CheckpointError, match="head must have the shape"):
        load_attention(path)


@pytest.mark.parametrize("form", [StepForm(new=6, ahead=12, left=24), StepForm(new=8, ahead=2, left=24)])
def test_a_form_of_frames_that_are_no_multiple_of_four_is_refused(form):
    """The groups of values would be torn."""
    with pytest.raises(ValueError, match="multiples of 4"):
        PackedAttention(PackedWeights(quantized_network()), form)
