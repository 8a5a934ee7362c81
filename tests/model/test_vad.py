"""Voice activity detection: many streams in one engine get the probabilities of the package for each alone."""

from __future__ import annotations

import hashlib
import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone, EngineEvent
from model.errors import CheckpointError
from model.recordings import PCM, read_pcm
from model.vad.silero import SHIPPED, SileroVad
from model.vad.step import WINDOW, WINDOWS
from tests.support.needs import need_package
from tests.support.servers.fakes import WAIT_S

SAMPLES = Path(__file__).parents[2] / "model" / "samples"
STEP = WINDOW
DIGEST = "f2ff8ee5456776bb76cd9b5d138c2f36b7b60ecef93dfbfc531f7e5df7673a92"


def recordings() -> dict[str, PCM]:
    """Return speech of several voices and lengths, noise, a tone, silence, and full scale; whole steps each."""
    random = np.random.default_rng(11)
    seconds = np.arange(2 * SileroVad.sample_rate) / SileroVad.sample_rate
    found = {path.stem: read_pcm(path) for path in sorted(SAMPLES.glob("*.flac"))[:8]}
    found |= {
        "noise": random.normal(0, 3_000, 24_000).astype(np.int16),
        "tone": (8_000 * np.sin(2 * np.pi * 220 * seconds)).astype(np.int16),
        "silence": np.zeros(20_000, np.int16),
        "square": np.where(np.sin(2 * np.pi * 100 * seconds) > 0, 32_767, -32_768).astype(np.int16),
    }
    return {name: pcm[: len(pcm) // STEP * STEP] for name, pcm in found.items()}


def row_of(windows: PCM) -> PCM:
    """Return the row of an engine with these windows, (S,)."""
    row = np.full(SileroVad.step_samples + 1, 9_999, np.int16)  # what follows the windows has no effect
    row[: len(windows)], row[-1] = windows, len(windows) // WINDOW
    return row


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return SileroVad.load()


@pytest.fixture(scope="module", params=["TorchScript", "ONNX"])
def packaged(request: pytest.FixtureRequest) -> Callable[[PCM], np.ndarray]:
    """Return the results of the package's model, one recording at a time."""
    threads = torch.get_num_threads()
    network = need_package("silero_vad").load_silero_vad(onnx=request.param == "ONNX")
    torch.set_num_threads(threads)  # importing the package changes it

    def probabilities(pcm: PCM) -> np.ndarray:
        network.reset_states()
        with torch.inference_mode():
            audio = torch.from_numpy(pcm.astype(np.float32) / 32_768)
            steps = [audio[first : first + STEP] for first in range(0, len(audio), STEP)]
            return np.array([network(step, SileroVad.sample_rate).item() for step in steps])

    return probabilities


def through_engine(vad: SileroVad, recorded: dict[str, PCM]) -> dict[str, np.ndarray]:
    """Run all recordings at once as streams of one engine. Returns: the probabilities of each."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    slots = vad.slots(capacity=32, largest=32)
    engine = Engine(slots, policy=Policy.EAGER, max_queued=1_000, deliver=events.put)
    names = {engine.open(): name for name in recorded}
    for first in range(0, max(map(len, recorded.values())), SileroVad.step_samples):
        for stream, name in names.items():
            if first < len(recorded[name]):
                windows = recorded[name][first : first + SileroVad.step_samples]
                engine.push(stream, row_of(windows), tag=len(windows) // WINDOW)
    engine.start()
    answers: dict[str, list[float]] = {name: [] for name in recorded}
    sizes: set[int] = set()
    steps = sum(map(len, recorded.values())) // STEP
    while sum(map(len, answers.values())) < steps:
        event = events.get(timeout=WAIT_S)
        assert isinstance(event, BatchDone), event
        sizes.add(len(set(event.streams)))
        for stream, count, output in zip(event.streams, event.tags, event.outputs, strict=True):
            assert isinstance(count, int)
            answers[names[stream]] += output[:count].tolist()
            assert not output[count:].any()
    engine.stop(WAIT_S)
    assert max(sizes) == len(recorded)
    return {name: np.array(found) for name, found in answers.items()}


def test_many_streams_at_once_get_the_probabilities_of_the_package_alone(
    vad: SileroVad, packaged: Callable[[PCM], np.ndarray]
) -> None:
    # The package sums in another order: up to 1.3e-5 apart. A wrong state is off by at least 1e-2.
    recorded = recordings()
    for name, found in through_engine(vad, recorded).items():
        np.testing.assert_allclose(found, packaged(recorded[name]), atol=3e-5, err_msg=name)


def test_speech_has_a_high_probability_and_silence_and_noise_a_low_one(vad: SileroVad) -> None:
    found = through_engine(vad, recordings())
    for name in ("silence", "noise", "tone"):
        assert found[name].max() < 0.5, name
    speech = [name for name in found if (SAMPLES / f"{name}.flac").exists()]
    assert speech
    for name in speech:
        assert found[name].max() > 0.9, name


def test_a_row_has_the_same_bits_in_every_batch(vad: SileroVad) -> None:
    rows, steps = 48, 3
    dice = np.random.default_rng(0)
    audio = dice.integers(-9_000, 9_000, (steps, rows, SileroVad.step_samples)).astype(np.int16)

    def run(members: range) -> list[tuple[bytes, bytes]]:
        slots = vad.slots(capacity=rows, largest=rows)
        for step in audio:
            for row, number in enumerate(members):
                slots.inputs[row] = row_of(step[number, : number % (WINDOWS + 1) * WINDOW])
            outputs = slots.run(members)
        return [(row.tobytes(), slots.export(slot)) for row, slot in zip(outputs, members, strict=True)]

    whole = run(range(rows))
    for size in range(1, rows):
        assert run(range(rows - size, rows)) == whole[rows - size :], size


def test_windows_have_the_same_bits_however_many_a_row_has(vad: SileroVad) -> None:
    (pcm,) = (pcm for name, pcm in recordings().items() if name == "noise")

    def run(counts: list[int]) -> tuple[list[float], bytes]:
        slots, at, found = vad.slots(capacity=1, largest=1), 0, list[float]()
        for count in counts:
            slots.inputs[0] = row_of(pcm[at * WINDOW : (at + count) * WINDOW])
            found += slots.run([0])[0, :count].tolist()
            at += count
        return found, slots.export(0)

    windows = len(pcm) // WINDOW
    assert run([1] * windows) == run([8] * (windows // 8) + [windows % 8]) == run([3, 0, 5] * (windows // 8) + [6])


def test_the_bits_are_the_same_on_every_processor(vad: SileroVad) -> None:
    """The digest was computed with AVX-512 and with AVX2; `make test-avx2` compares it again."""
    slots = vad.slots(capacity=1, largest=8)
    digest = hashlib.sha256()
    for pcm in recordings().values():
        slots.reset(0)
        for window in pcm.reshape(-1, STEP):
            slots.inputs[0] = row_of(window)
            digest.update(slots.run([0])[:, :1].tobytes())
        digest.update(slots.export(0))
    assert digest.hexdigest() == DIGEST


def test_weights_of_another_network_are_refused(vad: SileroVad) -> None:
    graph = onnx.load(SHIPPED).graph
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    SileroVad(tensors)
    basis = tensors["model.stft.forward_basis_buffer"].copy()
    basis[3, 0, 7] *= 2
    for name, wrong in (
        ("model.decoder.rnn.bias_ih", np.zeros(3, np.float32)),
        ("model.stft.forward_basis_buffer", basis),
    ):
        with pytest.raises(CheckpointError, match="not the weights of silero-vad"):
            SileroVad(tensors | {name: wrong})
    with pytest.raises(CheckpointError, match=r"model\.decoder\.rnn\.bias_hh"):
        SileroVad({name: tensor for name, tensor in tensors.items() if name != "model.decoder.rnn.bias_hh"})


def test_serving_it_needs_neither_torch_nor_onnx_runtime() -> None:
    code = (
        "import sys; from model.vad.silero import SileroVad; SileroVad.load().slots(capacity=2, largest=2).run([0, 1]);"
        "assert not {'silero_vad', 'torch', 'torchaudio', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=SAMPLES.parents[1])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vad.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match=r"voice activity detection: .*vad\.onnx"):
        SileroVad.load(path)
