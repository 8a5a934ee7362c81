"""Calibration of a probe's output biases, so that real speech gives blanks, repeats and many different tokens.

Random weights alone always prefer the same few tokens. A recording is run through the graph, each token's bias is set
to minus its mean, and that of the blank so that it wins in a chosen share of the frames.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from tests.support.needs import need_package

RECORDING = Path(__file__).parents[4] / "model" / "samples" / "demo.flac"
QUIET_S = 1.5  # of noise, and of silence, after the recording
NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
FFT, FRAME, HOP, RATE = 512, 400, 160, 16000


def speech():
    """Return samples (S,) float64 in [-1, 1] at 16 kHz."""
    samples, _ = soundfile.read(RECORDING)
    noise = np.random.default_rng(0).normal(0, 0.01, int(QUIET_S * RATE))
    return np.concatenate([samples, noise, np.zeros(int(QUIET_S * RATE))])


def log_mels(samples, mels):
    """Return frames (T, F) of log-mel energies, close enough to the published features for setting biases."""
    starts = np.arange(0, len(samples) - FRAME, HOP)
    frames = samples[starts[:, None] + np.arange(FRAME)]
    frames = np.diff(frames, axis=1, prepend=frames[:, :1]) + 0.03 * frames  # pre-emphasis of 0.97
    power = np.abs(np.fft.rfft(frames * np.hanning(FRAME), FFT)) ** 2
    edges = 700 * (np.exp(np.linspace(np.log1p(20 / 700), np.log1p(7600 / 700), mels + 2)) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.log(power @ np.maximum(0, np.minimum(rising, falling)).T + 1.2e-7).astype(np.float32)


def windows_of(kind, window, shift, feature="", bins=80, *, context=0, normalized=False):
    """Return the recording as windows for the first input of a kind, each with a batch axis of one.

    `context`: frames of zeros before the recording. `normalized`: each bin has mean 0 and deviation 1 in a window.
    """
    samples = speech()
    if kind == "t-one-ctc":
        slow = samples[: len(samples) // 2 * 2].reshape(-1, 2).mean(1)  # 8 kHz
        blocks = (32767 * slow[: len(slow) // window * window]).astype(np.int32).reshape(-1, 1, window, 1)
        return list(blocks)
    frames = np.pad(log_mels(samples, bins), ((context, 0), (0, 0)))
    blocks = [frames[start : start + window] for start in range(0, len(frames) - window, shift)]
    if feature == "whisper":
        blocks = [block / np.float32(np.log(10)) for block in blocks]
        blocks = [(np.maximum(block, block.max() - 8) + 4) / 4 for block in blocks]
    if normalized:
        blocks = [(block - block.mean(0)) / (block.std(0) + 1e-5) for block in blocks]
    return [(block.T if kind.startswith("nemo") else block)[None] for block in blocks]


def biases(scores, blank, blank_share):
    """Return the bias of each token (V,) for scores (T, V): equal means, and the blank with its share of frames."""
    centered = scores - scores.mean(1, keepdims=True)
    bias = -centered.mean(0)
    centered += bias
    others = np.delete(centered, blank, axis=1).max(1)
    bias[blank] += np.quantile(others - centered[:, blank], blank_share)
    return bias.astype(np.float32)


def open_session(model):
    """Return a session with one thread for a path or bytes."""
    onnxruntime = need_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options)


def zero_states(session, states, batch=1):
    """Return zeros for each state input, by name."""
    inputs = {entry.name: entry for entry in session.get_inputs()}
    shapes = {name: [batch if size == "N" else size for size in inputs[name].shape] for name, _ in states}
    return {name: np.zeros(shape, NUMPY_TYPES[inputs[name].type]) for name, shape in shapes.items()}


def host_values(session, window):
    """Return the inputs other than window and states: NeMo's length, and the language that is found automatically."""
    names = {entry.name for entry in session.get_inputs()}
    length = {"length": np.full(len(window), window.shape[2], np.int64)} if "length" in names else {}
    return length | ({"prompt_index": np.full(len(window), 9, np.int64)} if "prompt_index" in names else {})


def run_windows(session, states, windows, *, zeroed=()):
    """Return the first output of every window; the states named in `zeroed` are zero before each step.

    `windows` are arrays with the batch axis, in the layout of the graph's first input.
    """
    first = session.get_inputs()[0].name
    wanted = [session.get_outputs()[0].name, *(after for _, after in states)]
    values = zero_states(session, states, len(windows[0]))
    clean = dict(values)
    results = []
    for window in windows:
        values |= {name: clean[name] for name in zeroed}
        feed = {first: window} | values | host_values(session, window)
        result, *following = session.run(wanted, feed)
        values = {name: after for (name, _), after in zip(states, following, strict=True)}
        results.append(result)
    return results
