"""Search of transducers: the symbols and log-probabilities of a search frame by frame, for any rows of a batch."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from model.acoustic import load_model
from model.published.rows import check_rows
from model.published.transducer.frame_joiner import Rows
from model.published.transducer.greedy_search import NONE, GreedySearch
from model.published.transducer.networks import NEMO_SYMBOLS, Recurrent
from tests.support.networks.probes import make_probe
from tests.support.networks.published import model_of

KINDS = ("zipformer2-transducer", "one-symbol-context", "nemo-transducer", "two-lstm-layers")
ROWS, FRAMES = 11, 20


def run(graph, *inputs):
    return graph.session.run(None, {each.name: array for each, array in zip(graph.inputs, inputs, strict=True)})


def log_probs(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@cache
def encoded(kind):
    """Frames (R, T, D) similar to an encoder's, of which some have symbols."""
    model = model_of(kind)
    width = model.transducer.width
    return np.random.default_rng(4).standard_normal((ROWS, FRAMES, width)).astype(np.float32)


def stateless_by_frame(model, frames):
    """Search of all rows frame by frame, as sherpa-onnx does it."""
    graphs, silent = model.networks, {0, *(at for at, each in enumerate(model.tokens.symbols) if each == "<unk>")}
    history = np.array([[-1] * (graphs.context - 1) + [0]] * len(frames), np.int64)
    found = np.full((*frames.shape[:2], 1, 2), NONE, np.float32)
    for at in range(frames.shape[1]):
        decoded = run(graphs.decoder, history)[0]
        logits = run(graphs.joiner, np.ascontiguousarray(frames[:, at]), decoded)[0]
        for row, symbol in enumerate(logits.argmax(axis=1)):
            if symbol not in silent:
                found[row, at, 0] = symbol, log_probs(logits)[row, symbol]
                history[row] = [*history[row, 1:], symbol]
    return found


def recurrent_by_frame(model, frames):
    """Search of all rows frame by frame, up to ten symbols each."""
    graphs, rows = model.networks, len(frames)
    states = [np.zeros((graphs.layers, rows, graphs.hidden), np.float32)] * 2
    lengths = np.ones(rows, np.int32)
    decoded, _, *states = run(graphs.decoder, np.full((rows, 1), graphs.tokens.blank, np.int32), lengths, *states)
    found = np.full((*frames.shape[:2], NEMO_SYMBOLS, 2), NONE, np.float32)
    for at in range(frames.shape[1]):
        active = np.ones(rows, bool)
        for place in range(NEMO_SYMBOLS):
            logits = run(graphs.joiner, frames[:, at, :, np.newaxis], decoded)[0].reshape(rows, -1)
            best = logits.argmax(axis=1)
            active &= best != graphs.tokens.blank
            for row in np.flatnonzero(active):
                found[row, at, place] = best[row], log_probs(logits)[row, best[row]]
            symbols = np.where(active, best, graphs.tokens.blank).astype(np.int32)[:, np.newaxis]
            output, _, *after = run(graphs.decoder, symbols, lengths, *states)
            decoded = np.where(active[:, np.newaxis, np.newaxis], output, decoded)
            states = [np.where(active[:, np.newaxis], new, old) for new, old in zip(after, states, strict=True)]
    return found


def searched(model, frames, step):
    """Result of the search for new streams, in steps of this many frames."""
    search = GreedySearch(model.networks)
    state = [np.repeat(part, len(frames), axis=0) for part in model.networks.start]
    parts = [frames[:, at : at + step] for at in range(0, frames.shape[1], step)]
    return np.concatenate([search.search(*state, part) for part in parts], axis=1)


@pytest.mark.parametrize("rows", [2, 3, ROWS])
@pytest.mark.parametrize("kind", KINDS)
def test_symbols_and_log_probabilities_are_those_of_a_search_frame_by_frame(kind, rows):
    model, frames = model_of(kind), encoded(kind)[:rows]
    by_frame = recurrent_by_frame if isinstance(model.networks, Recurrent) else stateless_by_frame
    expected = by_frame(model, frames)
    assert 2 * rows < (expected[..., 0] >= 0).sum()
    for step in (1, 8, FRAMES):
        found = searched(model, frames, step)
        np.testing.assert_array_equal(found[..., 0], expected[..., 0])
        np.testing.assert_allclose(found[..., 1], expected[..., 1], atol=1e-5)
        if not model.networks.rows.dependent:
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(kind):
    model, frames = model_of(kind), encoded(kind)
    if model.networks.rows.dependent:
        pytest.skip("the graphs of this processor depend on the batch")
    together = searched(model, frames, 8)
    for row in range(ROWS):
        np.testing.assert_array_equal(searched(model, frames[row : row + 1], 8)[0], together[row])


class Batches:
    """A graph whose first row depends on the number of rows."""

    def __init__(self, value):
        self.value = value

    def try_out(self, _occasion, given):
        return [np.stack([np.float32([self.value(len(given))])] * len(given))]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda _: 1.0, Rows()),
        (lambda rows: 1.0 + 1e-6 * (rows > 1), Rows(least=2)),
        (lambda rows: 1.0 + 1e-6 * rows, Rows(dependent=True)),
        (lambda rows: 1.0 + 0.01 * rows, Rows(dependent=True, ahead=1)),
    ],
)
def test_the_dependence_of_rows_on_their_batch_is_detected(value, expected):
    assert Rows.of(Batches(value), (np.zeros((17, 1)), 0)) == expected


def test_a_batch_below_the_least_size_is_padded_and_has_the_same_symbols():
    model, frames = model_of("nemo-transducer"), encoded("nemo-transducer")[:1]
    expected = searched(model, frames, 8)
    object.__setattr__(model.networks, "rows", Rows(least=4))
    try:
        np.testing.assert_array_equal(searched(model, frames, 8)[..., 0], expected[..., 0])
    finally:
        object.__setattr__(model.networks, "rows", Rows())


@pytest.mark.parametrize("kind", ["zipformer2-transducer", "nemo-transducer"])
def test_a_quantized_joiner_is_run_row_by_row_where_rows_may_not_depend_on_others(kind, tmp_path):
    model = load_model(make_probe(kind, tmp_path, quantized=True).folder)
    assert model.networks.rows.dependent
    assert model.networks.rows.ahead == 1
    assert not check_rows(model, model.tokens.blank, tile_rows=16).dependent_bits
