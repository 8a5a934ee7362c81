"""The network of voices in 8 bits: its file loads in the server's model, whose vectors are near the float network's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from model.recordings import read_pcm
from model.speakers.slot_model import STEP_SAMPLES, SpeakerModel, SpeakerWeights
from model.speakers.step import SIZE
from tutti_asr_lab.training.speakers.network import VoiceNetwork, quantized_tensors
from tutti_asr_lab.training.speakers.train import Recording, train, voiced_frames

DEMO = Path(__file__).parents[4] / "model" / "samples" / "demo.flac"
WINDOW = 160  # frames of 10 ms


@pytest.fixture(scope="module")
def pcm():
    return read_pcm(DEMO)


def served_vectors(path, pcm):
    """Return the start and the end of each window in samples, and its vector."""
    model = SpeakerModel(SpeakerWeights.load(path), 1)
    windows, vectors = [], []
    for step in range(len(pcm) // STEP_SAMPLES):
        model.inputs[0] = pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
        (row,) = model.run([0])
        if row[0]:
            end = (step + 1) * STEP_SAMPLES
            windows.append((end - round(float(row[0]) * 16_000), end))
            vectors.append(row[1:])
    return windows, np.array(vectors)


@torch.no_grad()
def float_vectors(network, spans, pcm, mean, deviation):
    """Return the vectors of windows between these samples, without the frames before them."""
    windows = [(voiced_frames(pcm[max(0, start) : end]) - mean) / deviation for start, end in spans]
    return np.concatenate([network(torch.from_numpy(window)[None]).numpy() for window in windows])


def test_vectors_of_8_bits_are_near_those_of_floats(tmp_path, pcm):
    torch.manual_seed(3)
    network, frames = VoiceNetwork(), voiced_frames(pcm)
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)
    normal = torch.from_numpy((frames - mean) / deviation)
    network.train()
    for _ in range(40):
        network(normal[None])  # sets the means and variances of the normalization
    whole = normal[: len(normal) // WINDOW * WINDOW].reshape(-1, WINDOW, normal.shape[1])
    path = tmp_path / "voices.safetensors"
    path.write_bytes(save(quantized_tensors(network, mean, deviation, whole)))
    spans, served = served_vectors(path, pcm)
    assert len(spans) >= 5
    floats = float_vectors(network, spans, pcm, mean, deviation)
    assert np.sum(served * floats, axis=1).min() > 0.85  # the shortest has frames before it that the floats lack
    other = float_vectors(VoiceNetwork().eval(), spans, pcm, mean, deviation)
    assert np.abs(np.sum(served * other, axis=1)).max() < 0.5
    center, count = floats.mean(axis=0), len(spans)  # a random network's vectors of one recording differ little
    likeness = np.corrcoef(np.concatenate([served - center, floats - center]))[:count, count:]
    assert likeness.diagonal().mean() > likeness[~np.eye(count, dtype=bool)].mean() + 0.3


def test_training_writes_weights_that_the_server_loads(tmp_path, pcm):
    halves = {("a", 1.0): pcm[: len(pcm) // 2], ("b", 1.0): pcm[len(pcm) // 2 :], ("b", 0.88): pcm[::-1].copy()}
    recordings = [Recording(speaker, voiced_frames(part)) for speaker, part in halves.items()]
    taught = {"a": np.eye(SIZE, dtype=np.float32)[0], "b": np.eye(SIZE, dtype=np.float32)[1]}
    path = tmp_path / "voices.safetensors"
    path.write_bytes(save(train(recordings, taught, minutes=0.002)))
    spans, vectors = served_vectors(path, pcm)
    assert spans
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
