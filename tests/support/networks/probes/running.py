"""Runs a probe's streaming graph in onnxruntime, one stream, window by window, for calibration and tests.

Not a loader: the caller computes the features.
"""

from __future__ import annotations

import numpy as np

from tests.support.needs import need_package

NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


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
    """Return the inputs other than window and states: NeMo's length."""
    has_length = any(entry.name == "length" for entry in session.get_inputs())
    return {"length": np.full(len(window), window.shape[2], np.int64)} if has_length else {}


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
