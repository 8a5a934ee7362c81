"""Compiled decoder and joiner: the graphs' results, and the same bits in every batch and on every processor."""

from __future__ import annotations

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.errors import PublishedModelError
from model.published.compiled.linears import Linear
from model.published.compiled.transducer.checking import compiled_networks, read_networks
from model.published.compiled.transducer.network import LARGEST_CALL, CompiledNetworks
from model.published.compiled.transducer.weights import TransducerWeights, read_transducer
from model.published.graphs.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.scales import Scale, quantized_weights
from model.published.transducer.greedy_search import GreedySearch
from model.published.transducer.networks import Recurrent, Stateless, TransducerNetworks
from model.published.transducer_files import _LOADED
from model.transducer.beam import TransducerBeamDecoder
from model.transducer.decoder import TransducerDecoder
from tests.support.decoding.toy_transducer import ToyNetworks
from tests.support.networks.compiled import compiled_folder, compiled_model
from tests.support.networks.probes.graph import Graph
from tests.support.networks.published import model_of, probe_of
from tests.support.processors import AVX2, BASELINE, digest_elsewhere

Floats = NDArray[np.float32]
KINDS = ("nemo-transducer", "zipformer2-transducer")
ROWS, FRAMES, VOCABULARY = 11, 20, 37
LSTM, STATELESS = "lstm", "stateless"


def random_weights(kind: str) -> TransducerWeights:
    """Weights of odd sizes, whose scores often have equal best ones in 8 bits."""
    dice = np.random.default_rng(7)

    def linear(name: str, rows: int, columns: int) -> Linear:
        weight = dice.standard_normal((rows, columns)) * rows**-0.5
        return Linear(name, weight.astype(np.float32), dice.standard_normal(columns).astype(np.float32))

    scores = linear("joiner scores", 48, 48)
    scores.bias[VOCABULARY:] = -1e30
    embedding = dice.standard_normal((VOCABULARY, 16)).astype(np.float32)
    if kind == STATELESS:
        return TransducerWeights(embedding, 2, (linear("c", 32, 48),), None, None, scores, "Tanh", VOCABULARY)
    layers = [linear(f"prediction {at} {name}", size, 128) for at in (0, 1) for name, size in NAMED[at]]
    parts = linear("joiner history", 32, 48), linear("joiner frames", 64, 48)
    return TransducerWeights(embedding, 0, tuple(layers), *parts, scores, "Relu", VOCABULARY)


NAMED = ((("inputs", 16), ("state", 32)), (("inputs", 32), ("state", 32)))


def network(weights: TransducerWeights, *, integers: bool) -> CompiledNetworks:
    scale = Scale.of(-2, 2) if integers else None
    published, (symbols, states, _) = ToyNetworks(), inputs(weights, 1)
    published.start = symbols if states is None else states, published.start[1]
    return CompiledNetworks(weights.with_linears(replace(each, scale=scale) for each in weights.linears), published)


def inputs(weights: TransducerWeights, rows: int) -> tuple[NDArray[np.int64], Floats | None, Floats]:
    """Symbols, states and frames of rows."""
    dice = np.random.default_rng(9)
    shape = (rows, weights.context) if weights.context else (rows,)
    symbols = dice.integers(-1 if weights.context else 0, VOCABULARY, shape)
    states = dice.uniform(-1, 1, (rows, 2, weights.layers, weights.hidden)).astype(np.float32)
    frames = dice.standard_normal((1, rows, 64 if weights.frames else weights.joined)).astype(np.float32)
    return symbols, None if weights.context else states, frames


def results(weights: TransducerWeights, rows: int, *, integers: bool, chosen: slice = slice(None)) -> list[Any]:
    """Outputs of all calls for rows, or the chosen ones of them."""
    calls = network(weights, integers=integers)
    symbols, states, frames = inputs(weights, rows)
    states = None if states is None else np.ascontiguousarray(states[chosen])
    history, projected = calls.predict(symbols[chosen], states), calls.project(frames[:, chosen])[0]
    best = calls.best(projected, history, np.ones(VOCABULARY, np.bool_))
    return [history, projected, calls.join(projected, history), *best, *([] if states is None else [states])]


def layer(linear: Linear, x: Floats, *, integers: bool) -> Floats:
    if not integers:
        return np.asarray(x @ linear.weight + linear.bias, np.float32)
    scale = Scale.of(-2, 2)
    weight, steps = quantized_weights(linear.weight)
    sums = (scale.bytes_of(x).astype(np.int32) - scale.zero) @ weight.astype(np.int32)
    return np.asarray(sums.astype(np.float32) * (steps * np.float32(scale.step)) + linear.bias, np.float32)


def sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def expected(weights: TransducerWeights, rows: int, *, integers: bool) -> tuple[Floats, Floats, Floats | None]:
    """The decoder's output, the scores and the next states, in numpy."""
    symbols, states, frames = inputs(weights, rows)
    x = np.where(symbols[..., None] < 0, np.float32(0), weights.embedding[symbols]).reshape(rows, -1)
    if states is None:
        decoded = np.maximum(layer(weights.prediction[0], x, integers=integers), 0)
    else:
        for at in range(weights.layers):
            inward, state = weights.prediction[2 * at : 2 * at + 2]
            gates = layer(inward, x, integers=integers) + layer(state, states[:, 0, at], integers=integers)
            i, o, f, c = np.split(gates, 4, axis=1)
            states[:, 1, at] = sigmoid(f) * states[:, 1, at] + sigmoid(i) * np.tanh(c)
            states[:, 0, at] = x = sigmoid(o) * np.tanh(states[:, 1, at])
        decoded = x
    history = decoded if weights.history is None else layer(weights.history, decoded, integers=integers)
    part = frames[0] if weights.frames is None else layer(weights.frames, frames[0], integers=integers)
    total = np.tanh(part + history) if weights.activation == "Tanh" else np.maximum(part + history, 0)
    return history, layer(weights.scores, total, integers=integers)[:, :VOCABULARY], states


@pytest.mark.parametrize("kind", [LSTM, STATELESS])
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_decoder_and_joiner_compute_what_they_say(kind: str, integers: bool) -> None:
    weights = random_weights(kind)
    history, _, scores, *_, states = [*results(weights, ROWS, integers=integers), None][:6]
    wanted = expected(weights, ROWS, integers=integers)
    near = {"atol": 0.1 if integers else 2e-5}  # a byte may round otherwise
    np.testing.assert_allclose(history, wanted[0], **near)
    np.testing.assert_allclose(scores, wanted[1], **near)
    if kind == LSTM:
        np.testing.assert_allclose(states, wanted[2], **near)


@pytest.mark.parametrize("kind", [LSTM, STATELESS])
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_the_best_symbol_is_the_first_with_the_highest_score(kind: str, integers: bool) -> None:
    weights = random_weights(kind)
    weights.scores.weight[:, 20] = weights.scores.weight[:, 4]  # equal scores, in different lanes
    weights.scores.weight[:, 36] = weights.scores.weight[:, 4]  # and in the same lane
    for at in (4, 20, 36):
        weights.scores.bias[at] = 3
    _, _, scores, best, log_probs, *_ = results(weights, 200, integers=integers)
    assert (best == 4).sum() > 20
    np.testing.assert_array_equal(best, scores.argmax(axis=1))
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    np.testing.assert_allclose(log_probs, -np.log(np.exp(shifted).sum(axis=1)), atol=1e-5)


def test_a_log_probability_that_is_not_wanted_is_zero() -> None:
    weights = random_weights(LSTM)
    calls, (symbols, states, frames) = network(weights, integers=True), inputs(weights, ROWS)
    history, projected = calls.predict(symbols, states), calls.project(frames)[0]
    every, some = np.ones(VOCABULARY, np.bool_), np.arange(VOCABULARY) % 2 == 0
    best, log_probs = calls.best(projected, history, every)
    again, wanted = calls.best(projected, history, some)
    np.testing.assert_array_equal(best, again)
    np.testing.assert_array_equal(wanted, np.where(some[best], log_probs, 0))
    assert 0 < some[best].sum() < ROWS


@pytest.mark.parametrize("kind", [LSTM, STATELESS])
@pytest.mark.parametrize("integers", [False, True], ids=["floats", "integers"])
def test_a_row_has_the_same_bits_in_every_batch(kind: str, integers: bool) -> None:
    weights, rows = random_weights(kind), LARGEST_CALL + ROWS
    together = results(weights, rows, integers=integers)
    for chosen in (slice(0, 1), slice(3, 8), slice(5, 5 + LARGEST_CALL), slice(rows - 1, rows)):
        for alone, batch in zip(results(weights, rows, integers=integers, chosen=chosen), together, strict=True):
            assert alone.tobytes() == batch[chosen].tobytes()


@pytest.mark.parametrize("variant", ["nemo-exported", "zipformer-exported"])
def test_the_search_in_floats_writes_what_the_graphs_write(variant: str) -> None:
    model = model_of(variant)
    published = PublishedModel.load(probe_of(variant).folder, device="cpu", rewriting="off")
    assert model.graph_search == ""
    assert isinstance(model.networks, CompiledNetworks)
    assert isinstance(published.networks, Stateless | Recurrent)
    found, wanted = (searched(each.networks) for each in (model, published))
    assert (wanted[..., 0] >= 0).sum() > ROWS
    np.testing.assert_array_equal(found[..., 0], wanted[..., 0])
    np.testing.assert_allclose(found[..., 1], wanted[..., 1], atol=1e-4)


def random_frames(rows: slice = slice(None)) -> Floats:
    return np.random.default_rng(4).standard_normal((ROWS, FRAMES, 64)).astype(np.float32)[rows]


def searched(networks: TransducerNetworks, step: int = 7, rows: slice = slice(None)) -> Floats:
    """What new streams with random frames write, in steps of this many frames."""
    frames, search = random_frames(rows), GreedySearch(networks)
    state = [np.repeat(part, len(frames), axis=0) for part in networks.start]
    parts = [search.search(*state, frames[:, at : at + step]) for at in range(0, FRAMES, step)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_writes_the_same_in_every_batch_and_step(kind: str) -> None:
    networks = compiled_model(kind).networks
    assert isinstance(networks, CompiledNetworks)
    together = searched(networks)
    assert (together[..., 0] >= 0).sum() > ROWS
    for row in range(ROWS):
        assert searched(networks, 5, slice(row, row + 1)).tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("beams", [0, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_same_bits_beside_one_with_key_terms(kind: str, beams: int) -> None:
    """Rows with key terms need the scores of all symbols, the others only the best one."""
    model = compiled_model(kind)
    assert isinstance(model.networks, CompiledNetworks)
    decoder = (
        TransducerBeamDecoder(model.networks, 0.08, beams=beams) if beams else TransducerDecoder(model.networks, 0.08)
    )
    pieces = [name[1:] for name in model.tokens.symbols if name.startswith("▁") and name[1:].isalpha()]
    terms = Bias(tuple((piece, 3.0) for piece in pieces[:40]))

    def words(rows: list[int], bias: Bias = terms) -> list[bytes]:
        states = [decoder.start(0, bias if row % 2 else NO_BIAS) for row in rows]
        for at in range(0, FRAMES, 5):
            decoder.advance(states, random_frames()[rows, at : at + 5])
        return [decoder.save(state) for state in states]

    together = words(list(range(ROWS)))
    assert [words([row])[0] for row in range(ROWS)] == together
    without = words(list(range(ROWS)), NO_BIAS)
    assert [one == other for one, other in zip(together, without, strict=True)][:4] == [True, False] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_loads_the_same_form(kind: str) -> None:
    model = compiled_model(kind)
    assert model.networks is not None
    files = pickle.loads(pickle.dumps(model.transducer))
    assert files.load() is model.networks  # of the same process
    _LOADED.pop(files)
    try:
        again = files.load()
        assert isinstance(again, CompiledNetworks)
        assert searched(again).tobytes() == searched(model.networks).tobytes()
    finally:
        _LOADED[files] = model.networks


def test_threads_may_search_at_once() -> None:
    networks = compiled_model("nemo-transducer").networks
    assert networks is not None
    alone = searched(networks).tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert {found.tobytes() for found in pool.map(lambda _: searched(networks), range(8))} == {alone}


@cache
def digest() -> str:
    """Return a digest of all results."""
    made = hashlib.sha256()
    for kind in (LSTM, STATELESS):
        for integers in (False, True):
            for each in results(random_weights(kind), ROWS, integers=integers):
                made.update(each.tobytes())
    return made.hexdigest()


@pytest.mark.release
@pytest.mark.parametrize("switches", [AVX2, BASELINE], ids=["avx2", "portable"])
def test_the_digest_is_the_same_on_every_processor(switches: dict[str, str]) -> None:
    assert digest_elsewhere(__name__, switches) == digest()


@pytest.mark.parametrize("kind", KINDS)
def test_scales_change_the_digest_and_the_bits(kind: str) -> None:
    """The search of a model with scales is in integers; without them, the compiled one is in floats."""
    quantized = compiled_model(kind)
    floats = PublishedModel.load(compiled_folder(kind), device="cpu", precision="fp32")
    assert quantized.digest != floats.digest
    assert quantized.networks is not None
    assert floats.networks is not None
    assert searched(quantized.networks).tobytes() != searched(floats.networks).tobytes()


def published_networks(variant: str) -> Stateless | Recurrent:
    networks = PublishedModel.load(probe_of(variant).folder, device="cpu", rewriting="off").networks
    assert isinstance(networks, Stateless | Recurrent)
    return networks


@pytest.mark.parametrize("variant", ["nemo-transducer", "zipformer2-transducer"])
def test_other_networks_run_as_published(variant: str) -> None:
    networks, reason = published_networks(variant), "the joiner is not a linear layer after ReLU or tanh"
    assert compiled_networks(networks, None, in_floats=False) == (networks, reason)


def test_a_decoder_with_other_results_than_its_weights_say_runs_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    published = published_networks("nemo-exported")
    weights, reference = read_networks(published, in_floats=False)
    weights.prediction[0].bias[3] += 1
    monkeypatch.setattr(
        "model.published.compiled.transducer.checking.read_networks", lambda *_, **__: (weights, reference)
    )
    networks, reason = compiled_networks(published, None, in_floats=False)
    assert networks is published
    assert reason.startswith("the signal-to-noise ratio of decoder and joiner to the graphs is ")


def joiner(**changes: Any) -> OnnxGraph:
    """A joiner of 16 numbers and 32 symbols; `changes` are attributes of its last layer."""
    graph = Graph("joiner", 2)
    frame, history = (graph.input(name, ["N", 16]) for name in ("frame", "history"))
    active = graph("Relu", graph("Add", frame, history))
    graph.output(graph("Gemm", active, graph.weight(16, 32), graph.weight(32), **changes), "out", ["N", 32])
    return OnnxGraph.read(graph.model({}))


def decoder(hidden: int = 16, **changes: Any) -> OnnxGraph:
    """A decoder of an LSTM; `changes` are attributes of that."""
    graph = Graph("decoder", 3)
    symbol = graph.input("symbol", ["N", 1], "int64")
    x = graph("Transpose", graph("Gather", graph.weight(32, 16), symbol), perm=[1, 0, 2])
    weights = [graph.weight(1, 4 * hidden, size) for size in (16, hidden)]
    output, _, _ = graph("LSTM", x, *weights, outputs=3, hidden_size=hidden, **changes)
    graph.output(graph("Squeeze", output, [1]), "out", [1, "N", hidden])
    return OnnxGraph.read(graph.model({}))


def test_a_layer_written_as_a_gemm_is_read() -> None:
    weights = read_transducer(decoder(), joiner(), recurrent=True)
    assert (weights.layers, weights.hidden, weights.joined, weights.symbols) == (1, 16, 16, 32)


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ((decoder(), joiner(alpha=2.0)), "the joiner is not a linear layer after ReLU or tanh"),
        ((decoder(clip=1.0), joiner()), "an LSTM has clip"),
        ((decoder(direction="reverse"), joiner()), "an LSTM has a direction or peepholes"),
        ((decoder(32), joiner()), "the joiner has 16 inputs, not 32"),
        ((joiner(), joiner()), "the decoder has 0 tables of symbols"),
    ],
    ids=["factor", "clipped", "backwards", "sizes", "no table"],
)
def test_graphs_of_other_structure_are_refused_with_the_reason(
    graphs: tuple[OnnxGraph, OnnxGraph], reason: str
) -> None:
    with pytest.raises(PublishedModelError, match=reason):
        read_transducer(*graphs, recurrent=True)
