"""Buffered models: windows with context on the left, normalized by band, and the end of a stream."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from model.acoustic import log_probs_of
from model.errors import PublishedModelError
from model.published.features import FbankWindows, normalize_bands
from model.published.published_model import PublishedModel
from tests.support.networks.probes import make_probe
from tests.support.networks.probes.calibration import open_session
from tests.support.networks.published import model_of, probe_of, recognize, reference, shown

VARIANTS = ["nemo-buffered-transducer", "buffered-240", "buffered-1120"]
SAMPLES = Path(__file__).parents[3] / "model" / "samples"
RECORDINGS = ("garden_gate.flac", "order.flac", "hold_the_line.flac")


@cache
def recording(name):
    return soundfile.read(SAMPLES / name, dtype="int16")[0]


def windows_of(model, pcm, **changes):
    """Return the windows (W, L, F) of a recording with its flush; `changes`: options of the frames."""
    config = model.config
    streams = FbankWindows(replace(model.contract.fbank, **changes), config, capacity=1)
    steps = np.zeros((config.steps_of(len(pcm)), config.step_samples), np.int16)
    steps.reshape(-1)[config.lead_samples :][: len(pcm)] = pcm
    found = [streams.push(np.zeros(1, np.int64), step[np.newaxis])[1] for step in steps]
    return np.concatenate(found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_window_has_its_context_with_zeros_before_the_first_frame(variant):
    model = model_of(variant)
    left, shift, length = model.config.left, model.config.shift, model.contract.window
    windows = windows_of(model, recording("demo.flac"), normalized=False)
    frames = np.concatenate([windows[0][left:], *(window[-shift:] for window in windows[1:])])
    padded = np.pad(frames, ((left, 0), (0, 0)))
    assert len(windows) > length // shift > 1
    for number, window in enumerate(windows):
        assert np.array_equal(window, padded[number * shift :][:length])
    assert not windows[0][:left].any()
    assert (windows[0][left:] != 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_band_of_a_window_is_normalized_over_the_window_with_its_zeros(variant):
    model, pcm = model_of(variant), recording("garden_gate.flac")
    windows = windows_of(model, pcm, normalized=False).astype(np.float64)
    expected = (windows - windows.mean(1, keepdims=True)) / (windows.std(1, keepdims=True) + 1e-5)
    assert np.allclose(windows_of(model, pcm), expected, atol=1e-5)


def test_a_band_that_does_not_change_becomes_zero_and_rows_do_not_depend_on_others():
    dice = np.random.default_rng(0)
    windows = dice.standard_normal((3, 40, 128)).astype(np.float32) - 9
    windows[1] = np.float32(-15.942385)  # of silence
    together = windows.copy()
    normalize_bands(together)
    assert not together[1].any()
    for row in range(3):
        alone = windows[row : row + 1].copy()
        normalize_bands(alone)
        assert alone.tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_frames_of_the_shift_are_those_of_the_graph_after_the_context(variant):
    model, probe = model_of(variant), probe_of(variant)
    session = open_session(probe.model)
    windows = windows_of(model, recording("garden_gate.flac"))[:3]
    lengths = np.full(len(windows), model.contract.window, np.int64)
    frames, _ = session.run(None, {"audio_signal": windows.transpose(0, 2, 1), "length": lengths})
    count = model.config.frames_per_step
    slots = model._network(3, 3, least=1)
    found = slots.run(np.arange(3), windows)
    assert found.shape == (3, frames.shape[1], count)
    assert np.array_equal(found, frames[:, :, 70 : 70 + count])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_sherpa_onnx_has_these_symbols_before_those_of_the_zeros_after_finished_audio(variant, name):
    model = model_of(variant)
    (symbols, _), *_ = recognize(model, [recording(name)])
    tokens, _ = reference(variant, recording(name), finished=True)
    assert len(symbols) > 3
    assert tokens[: len(symbols)] == shown(model, symbols)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_streams_of_different_ages_have_the_bits_in_a_batch_that_they_have_alone(rows):
    """Each stream begins one step after the one before; all end together."""
    model = model_of("nemo-buffered-transducer")
    config, pcm = model.config, recording("order.flac")
    count = config.first_steps + rows + 3
    steps = np.resize(pcm, count * config.step_samples).reshape(count, -1)
    slots, alone = model.slots(capacity=rows, largest=rows), model.slots(capacity=1, largest=1)
    outputs = [[] for _ in range(rows)]
    for step in range(count):
        members = [row for row in range(rows) if row <= step]
        slots.inputs[: len(members)] = [steps[step - row] for row in members]
        for row, found in zip(members, slots.run(members), strict=True):
            outputs[row].append(found.tobytes())
    for row in range(rows):
        alone.reset(0)
        expected = []
        for step in range(count - row):
            alone.inputs[0] = steps[step]
            expected.append(alone.run([0])[0].tobytes())
        assert outputs[row] == expected
        assert slots.export(row) == alone.export(0)


def test_a_stream_holds_the_frames_of_its_context():
    model = model_of("nemo-buffered-transducer")
    frames = model.contract.window - model.config.shift
    assert model.slots(capacity=1, largest=1).state_bytes == 8 + 240 * 2 + frames * 128 * 4


def test_8_bit_rows_that_depend_on_their_batch_are_those_of_single_streams_if_run_alone(tmp_path):
    model = PublishedModel.load(make_probe("nemo-buffered-transducer", tmp_path, quantized=True).folder, device="cpu")
    recordings = [recording(name) for name in RECORDINGS]
    alone = [log_probs_of(model, [pcm])[0] for pcm in recordings]
    slots = model.slots(capacity=3, largest=3, tile_rows=16)
    config = model.config
    count = min(len(outputs) for outputs in alone) // config.frames_per_step
    for step in range(count):
        for row, pcm in enumerate(recordings):
            part = np.pad(pcm, (config.lead_samples, 0))[step * config.step_samples :][: config.step_samples]
            slots.inputs[row] = np.pad(part, (0, config.step_samples - len(part)))
        for row, found in enumerate(slots.run(range(3))):
            at = step * config.frames_per_step
            assert np.array_equal(found, alone[row][at : at + config.frames_per_step])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"streaming_model_type": "other"}, "streaming models of type 'other' are not supported, only 'nemo_parakeet"),
        ({"normalize_type": "all_features"}, "features normalized by 'all_features' are not supported"),
        (
            {"left_feature_frames": 568},
            "'left_feature_frames' in the metadata is 568, but 'left_encoder_frames' times 'subsampling_factor' is 560",
        ),
        (
            {"streaming_model_type": None, "buffered_streaming": None},
            "features normalized by 'per_feature' need the whole utterance and cannot be streamed",
        ),
        ({"chunk_encoder_frames": 0}, "'chunk_encoder_frames' in the metadata is '0', out of range"),
        (
            {
                "subsampling_factor": 4,
                "left_feature_frames": 280,
                "chunk_feature_frames": 8,
                "right_feature_frames": 20,
            },
            "output 0 has 39 frames, by its metadata it should have 72",
        ),
    ],
)
def test_metadata_that_cannot_be_served_are_refused_with_the_reason(values, problem, tmp_path):
    import onnx

    folder = Path(make_probe("nemo-buffered-transducer", tmp_path).folder)
    graph = onnx.load(folder / "encoder.onnx")
    kept = {entry.key: entry.value for entry in graph.metadata_props} | values
    onnx.helper.set_model_props(graph, {key: str(value) for key, value in kept.items() if value is not None})
    onnx.save(graph, folder / "encoder.onnx")
    with pytest.raises(PublishedModelError, match=problem.replace("(", r"\(")) as refused:
        PublishedModel.load(folder, device="cpu")
    assert str(refused.value).startswith("encoder.onnx: ")
