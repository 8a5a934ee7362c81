"""Batch sizes: outputs of published graphs do not depend on the batch size; one that needs two rows is padded."""

from __future__ import annotations

import numpy as np
import pytest

from model.published.published_model import PublishedModel
from tests.support.networks.probes.graph import FLOAT, Graph
from tests.support.networks.probes.tokens import symbols, write_tokens
from tests.support.networks.published import model_of

SIZES = (1, 2, 3, 5, 8, 16)
VOCABULARY, WINDOW, FRAMES = 35, 2_400, 10
FLOATS = ["zipformer2-ctc", "nemo-ctc", "t-one-ctc", "zipformer2-transducer", "nemo-transducer"]
FLOATS += ["zipformer-chunk-32", "nemo-1040", "nemo-buffered-transducer", "buffered-1120"]


def write_sum(folder, *, by):
    """Write a graph with the inputs of t-one-ctc whose frames are weighted sums over the first of two axes."""
    graph = Graph("sums", 0)
    signal = graph.input("signal", ["N", WINDOW, 1], "int32")
    state = graph.input("state", ["N", 4], "float16")
    samples = graph("Reshape", graph("Cast", signal, to=FLOAT), [0, WINDOW // FRAMES, FRAMES])
    weighted = graph("Mul", samples, graph.weight(WINDOW // FRAMES, 1, scale=1.0))
    if by == "ReduceSum":
        sums = graph("ReduceSum", weighted, [1], keepdims=0)  # (N, FRAMES)
    else:
        kernel = np.ones((1, WINDOW // FRAMES, 1), np.float32)
        sums = graph("Squeeze", graph("Conv", weighted, kernel, kernel_shape=[1]), [1])
    scores = graph("Mul", graph("Unsqueeze", sums, [2]), graph.weight(1, VOCABULARY, scale=1e-4))
    graph.output(graph("LogSoftmax", scores, axis=-1), "logprobs", ["N", FRAMES, VOCABULARY])
    graph.output(state, "state_next", ["N", 4], "float16")
    graph.save(folder / "model.onnx", {"sample_rate": 8000, "frame_length_ms": 300, "state_dim": 4})
    write_tokens(folder / "tokens.txt", symbols("t-one-ctc", "characters", VOCABULARY, 0))
    return PublishedModel.load(folder, device="cpu")


def first_rows(model):
    """Return the bits of the first stream's results and state after three windows of noise and more, by batch size."""
    dice = np.random.default_rng(0)
    steps = dice.integers(
        -9_000, 9_000, (model.config.first_steps + 3, max(SIZES), model.config.step_samples), dtype=np.int16
    )
    found = {}
    for size in SIZES:
        slots = model.slots(capacity=size, largest=max(SIZES))
        for slot in range(size):
            slots.reset(slot)
        results = []
        for step in steps:
            slots.inputs[:size] = step[:size]
            results.append(np.array(slots.run(range(size))[0]).tobytes())
        found[size] = b"".join(results), slots.export(0)
    return found


@pytest.mark.parametrize("variant", FLOATS)
def test_rows_of_a_float_graph_have_the_same_bits_at_every_batch_size_without_padding(variant):
    model = model_of(variant)
    assert model.least_rows == 1
    assert len(set(first_rows(model).values())) == 1


@pytest.mark.parametrize(("by", "least"), [("ReduceSum", 2), ("Conv", 1)])
def test_a_graph_whose_single_row_is_added_in_another_order_is_padded_to_two_rows(by, least, tmp_path):
    model = write_sum(tmp_path, by=by)
    assert model.least_rows == least
    assert len(set(first_rows(model).values())) == 1
