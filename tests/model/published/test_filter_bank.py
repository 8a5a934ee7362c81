"""Compiled features: those of kaldi-native-fbank up to rounding; their bits depend on no other frame or processor."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import kaldi_native_fbank as knf
import numpy as np
import pytest

from model.int8.vectors import LANES
from model.published.features import FbankWindows
from model.published.filter_bank import (
    KALDI,
    NEMO,
    SAMPLE_RATE,
    WHISPER,
    FilterBank,
    compute_frames,
    filters_of,
    scale_whisper,
)
from model.published.timing import BEFORE, FRAME_SAMPLES, HOP, PublishedDescription
from model.recordings import read_pcm
from tests.support.audio.speech import ROOT
from tests.support.processors import AVX2, BASELINE, OLD_LIBRARIES, digest_elsewhere, is_x86

OPTIONS = {
    "kaldi": KALDI,
    "nemo": NEMO,
    "whisper": WHISPER,
    "kaldi-40": replace(KALDI, bins=40),
    "nemo-128": replace(NEMO, bins=128),
    "nemo-160": replace(NEMO, bins=160),
    "whisper-128": replace(WHISPER, bins=128),
    "whisper-77": replace(WHISPER, bins=77),
}
SAMPLES = ROOT / "model" / "samples"
WINDOW, SHIFT = 45, 32


def speech(name="demo"):
    return read_pcm(SAMPLES / f"{name}.flac", SAMPLE_RATE)


def description(window=WINDOW, shift=SHIFT):
    return PublishedDescription(
        name="a",
        version="",
        architecture="",
        languages=(),
        sample_rate=SAMPLE_RATE,
        window=window,
        shift=shift,
        frames_per_step=8,
        frame_s=0.04,
    )


def reference(options, pcm):
    """Return the frames (T, F) of kaldi-native-fbank, for Whisper of energies."""
    if options.whisper:
        whisper = knf.WhisperFeatureOptions()
        whisper.dim = options.bins
        extractor = knf.OnlineWhisperFbank(whisper)
    else:
        given = knf.FbankOptions()
        frames, mel = given.frame_opts, given.mel_opts
        frames.dither, frames.snip_edges, frames.samp_freq = 0.0, False, SAMPLE_RATE
        frames.remove_dc_offset, frames.window_type = options.remove_dc, options.window
        mel.num_bins, mel.low_freq, mel.high_freq = options.bins, options.low_hz, options.high_hz
        mel.is_librosa = options.librosa
        extractor = knf.OnlineFbank(given)
    extractor.accept_waveform(SAMPLE_RATE, (pcm / np.float32(32_768)).tolist())
    return np.array([extractor.get_frame(at) for at in range(extractor.num_frames_ready)], np.float32)


def frames_of(options, pcm):
    """Return the frames (T, F) of samples, the first from the first sample on."""
    pcm = np.ascontiguousarray(pcm)
    count = (len(pcm) - FRAME_SAMPLES) // HOP + 1
    room = -(-count // LANES) * LANES
    starts, frames = np.zeros(room, np.int64), np.zeros((room, options.bins), np.float32)
    starts[:count] = pcm.ctypes.data + 2 * HOP * np.arange(count)
    bank = FilterBank.of(options)
    compute_frames(starts, count, bank.addresses, frames)
    return frames[:count]


def windows_of(windows, steps, slot):
    """Return the windows of a stream alone in a slot, with steps (N, S)."""
    windows.reset(slot)
    found = [windows.push(np.array([slot]), step[np.newaxis])[1] for step in steps]
    return np.concatenate(found)


def steps_of(pcm, count=12):
    """Return (N, S): steps of a recording."""
    size = SHIFT * HOP
    return pcm[: count * size].reshape(count, size)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("recording", ["demo", "account_number", "mandarin_weather"])
def test_logarithms_are_those_of_kaldi_native_fbank_within_a_thousandth(name, recording):
    options, pcm = OPTIONS[name], speech(recording)
    expected = reference(options, pcm)[1:]
    found = frames_of(options, pcm[HOP - BEFORE :])
    expected = expected[: len(found)]
    if options.whisper:  # in the units of its windows; the reference's transform has two digits less than this one
        expected, found = (np.log10(np.maximum(each, 1e-10)) / 4 for each in (expected, found))
    decibels = (expected - expected.max(axis=1, keepdims=True)) * (40 if options.whisper else 10 / np.log(10))
    difference = np.abs(found - expected)
    audible = decibels > -70  # of quieter bands both have only the rounding of the loudest one
    assert audible.mean() > 0.95
    assert difference[audible].max() < 1e-3
    assert difference.mean() < 1e-5
    assert difference.max() < 0.02


def test_the_first_frame_starts_with_the_reflection_of_the_audio():
    windows = FbankWindows(KALDI, description(), capacity=1)
    pcm, lead = speech(), description().lead_samples
    steps = steps_of(np.concatenate([np.zeros(lead, np.int16), pcm]))
    found = windows_of(windows, steps, 0)
    np.testing.assert_allclose(found[0], reference(KALDI, pcm)[:WINDOW], atol=1e-3)
    whole = np.concatenate([pcm[:BEFORE][::-1], pcm])
    frames = frames_of(KALDI, whole)
    for at, window in enumerate(found):
        np.testing.assert_array_equal(window, frames[at * SHIFT : at * SHIFT + WINDOW])


def test_a_filter_between_two_bins_of_the_transform_gives_the_least_energy():
    options = replace(KALDI, bins=160)
    empty = filters_of(options, 512).sum(axis=1) == 0
    assert 0 < empty.sum() < 20
    np.testing.assert_allclose(frames_of(options, speech())[:, empty], np.log(2.0**-23), atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_windows_of_streams_in_a_batch_have_the_bits_that_they_have_alone(name):
    """Streams start at different steps, and their rows change places."""
    dice, streams = np.random.default_rng(1), 19
    windows = FbankWindows(OPTIONS[name], description(), capacity=streams + 1)
    pcm = speech()
    steps = [steps_of(pcm[at : at + 12 * SHIFT * HOP]) for at in dice.integers(0, 60_000, streams)]
    alone = [windows_of(windows, each, streams) for each in steps]
    for slot in range(streams):
        windows.reset(slot)
    done, found = np.zeros(streams, int), [[] for _ in range(streams)]
    while (done < 12).any():
        members = dice.permutation(np.flatnonzero(done < 12))[: dice.integers(1, streams + 1)]
        ready, rows = windows.push(members, np.stack([steps[each][done[each]] for each in members]))
        for row, window in zip(ready, rows, strict=True):
            found[members[row]].append(window)
        done[members] += 1
    for one, together in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, np.stack(together))


@pytest.mark.parametrize(("window", "shift"), [(45, 32), (77, 64), (32, 32), (65, 56), (121, 112)])
def test_a_stream_continues_in_another_slot_with_a_state_of_the_published_size(window, shift):
    both = [FbankWindows(NEMO, description(window, shift), capacity=2) for _ in range(2)]
    steps = np.resize(speech(), 8 * shift * HOP).reshape(8, 1, -1)
    expected = [both[0].push(np.array([1]), step)[1] for step in steps]
    for number, step in enumerate(steps):
        np.testing.assert_array_equal(both[number % 2].push(np.array([0]), step)[1], expected[number])
        state = both[number % 2].export(0)
        assert len(state) == 8 + 2 * (FRAME_SAMPLES - HOP) + 4 * NEMO.bins * (window - shift) == both[0].state_bytes
        both[1 - number % 2].restore(0, state)


@pytest.mark.parametrize("bins", [80, 77])
def test_whispers_scaling_is_its_formula_for_each_window(bins):
    energies = np.exp(np.random.default_rng(2).normal(-5, 8, (3, WINDOW, bins))).astype(np.float32)
    energies[1] = 0
    found = energies.copy()
    scale_whisper(found)
    logs = np.log10(np.maximum(energies.astype(np.float64), 1e-10))
    highest = logs.max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found, (np.maximum(logs, highest - 8) + 4) / 4, atol=1e-6)
    scale_whisper(energies[2:])
    np.testing.assert_array_equal(found[2:], energies[2:])


def digest():
    """Return a digest of the windows of a recording with all options."""
    made = hashlib.sha256()
    for options in OPTIONS.values():
        windows = FbankWindows(options, description(), capacity=2)
        made.update(windows_of(windows, steps_of(speech()), 1).tobytes())
    return made.hexdigest()


@pytest.mark.parametrize("switches", [AVX2, BASELINE, BASELINE | OLD_LIBRARIES])
def test_features_have_the_same_bits_as_on_older_processors(switches):
    if not is_x86():
        pytest.skip("the switches are those of x86-64")
    assert digest_elsewhere(__name__, switches) == digest()
