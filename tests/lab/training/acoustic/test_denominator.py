"""The denominator of CTC-CRF against enumeration of all label sequences; its gradient against finite differences."""

import itertools
import math

import numpy as np
import pytest
import torch

from tutti_asr_lab.training.acoustic.losses.denominator import (
    ByMachineCode,
    BySparseProducts,
    Denominator,
    GroupedArcs,
    SparseArcs,
)
from tutti_asr_lab.training.acoustic.losses.label_model import label_graph

SEQUENCES = ([1, 2, 3], [2, 2, 1], [3, 1], [1, 2, 2, 3, 1], [2])
CPU = torch.device("cpu")


def drawn(rows, frames, labels, seed=0):
    logits = torch.randn(rows, frames, labels + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(logits, -1)


def precise(graph):
    arcs = SparseArcs(graph, CPU)
    for name in ("ends", "other", "other_back", "again", "again_back", "membership"):
        setattr(arcs, name, getattr(arcs, name).double())
    return arcs


def likely(graph, labels):
    """Probability of a label sequence, by following the arcs."""
    state, total = 0, 1.0
    for label in labels:
        (arcs,) = np.nonzero((graph.sources == state) & (graph.labels[graph.targets] == label))
        if not len(arcs):
            return 0.0
        assert len(arcs) == 1, "the graph is deterministic"
        state, total = graph.targets[arcs[0]], total * float(graph.weights[arcs[0]])
    return total * float(graph.ends[state])


def by_enumeration(log_probs, graph):
    total = 0.0
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        labels = [label for label, _ in itertools.groupby(path) if label]
        acoustic = math.exp(sum(float(row[at]) for row, at in zip(log_probs, path, strict=True)))
        total += acoustic * likely(graph, labels)
    return math.log(total)


@pytest.mark.parametrize(("order", "states"), [(2, 10), (3, 10), (4, 10), (4, 6)])
def test_a_graph_contains_its_training_sequences_and_its_states_are_distributions(order, states):
    graph = label_graph(SEQUENCES, order, states)
    assert len(graph.labels) <= max(states, 4)
    assert all(likely(graph, sequence) > 0 for sequence in SEQUENCES)
    leaving = graph.ends + np.bincount(graph.sources, graph.weights, len(graph.labels))
    assert (leaving < 1 + 1e-6).all()
    assert (leaving > 0.5).all()


def test_a_longer_context_makes_the_texts_likelier():
    short, long = (label_graph(SEQUENCES, order, 30) for order in (2, 4))
    assert all(likely(long, sequence) > likely(short, sequence) for sequence in SEQUENCES[:2])


@pytest.mark.parametrize(("order", "states"), [(2, 10), (4, 30), (4, 7)])
def test_the_sum_is_over_all_paths_weighted_by_their_labels(order, states):
    graph = label_graph(SEQUENCES, order, states)
    log_probs, frames = drawn(3, 4, 3), torch.tensor([4, 3, 1])
    found = BySparseProducts.apply(log_probs, frames, precise(graph))
    for row, (count, total) in enumerate(zip(frames.tolist(), found.tolist(), strict=True)):
        assert total == pytest.approx(by_enumeration(log_probs[row, :count], graph), abs=1e-12)


def test_the_gradient_is_the_derivative_and_zero_for_padding():
    arcs = precise(label_graph(SEQUENCES, 4, 30))
    log_probs, frames = drawn(2, 5, 3).requires_grad_(), torch.tensor([5, 3])
    assert torch.autograd.gradcheck(lambda x: BySparseProducts.apply(x, frames, arcs).sum(), (log_probs,))
    (grad,) = torch.autograd.grad(BySparseProducts.apply(log_probs, frames, arcs).sum(), (log_probs,))
    assert torch.allclose(grad[0].sum(1), torch.ones(5, dtype=torch.float64))
    assert not grad[1, 3:].any()


def test_compiled_code_and_sparse_products_agree():
    rng = np.random.default_rng(0)
    graph = label_graph([rng.integers(1, 6, 20) for _ in range(60)], 4, 80)
    log_probs = drawn(5, 40, 5).float().requires_grad_()
    frames, each = torch.tensor([7, 40, 1, 39, 23]), torch.arange(1.0, 6.0)
    found = []
    for function, arcs in ((ByMachineCode, GroupedArcs(graph)), (BySparseProducts, SparseArcs(graph, CPU))):
        totals = function.apply(log_probs, frames, arcs)
        found.append((totals.detach(), *torch.autograd.grad((totals * each).sum(), log_probs)))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alone", [0, 1])
def test_the_loss_of_a_recording_does_not_depend_on_its_batch(alone):
    denominator = Denominator(label_graph(SEQUENCES, 4, 30), CPU)
    log_probs, frames = drawn(2, 30, 3).float().requires_grad_(), torch.tensor([20, 30])
    (together,) = torch.autograd.grad(denominator(log_probs, frames), log_probs)
    one = log_probs[alone : alone + 1].detach().requires_grad_()
    (single,) = torch.autograd.grad(denominator(one, frames[alone : alone + 1]), one)
    assert torch.equal(single[0], together[alone])


def test_long_recordings_stay_finite_in_single_precision():
    rng = np.random.default_rng(0)
    denominator = Denominator(label_graph([rng.integers(1, 4, 30) for _ in range(40)], 4, 30), CPU)
    log_probs = (8 * drawn(2, 700, 3)).log_softmax(-1).float().requires_grad_()
    total = denominator(log_probs, torch.tensor([700, 650]))
    total.backward()
    assert math.isfinite(total.item())
    assert torch.allclose(log_probs.grad[0].sum(1), torch.ones(700), atol=1e-4)


@pytest.mark.parametrize(("function", "kind"), [(ByMachineCode, GroupedArcs), (BySparseProducts, SparseArcs)])
def test_a_recording_without_a_path_has_zero_loss_and_no_gradient(function, kind):
    graph = label_graph([[1, 2]], 3, 10)
    arcs = kind(graph) if kind is GroupedArcs else kind(graph, CPU)
    log_probs = torch.full((2, 3, 3), -200.0)
    log_probs[0, 0, 1] = log_probs[0, 1:, 2] = 0.0  # says 1, 2
    log_probs[1, :, 2] = 0.0  # says 2 alone, which no sequence begins with
    log_probs.requires_grad_()
    total = function.apply(log_probs, torch.tensor([3, 3]), arcs)
    (grad,) = torch.autograd.grad(total.sum(), log_probs)
    assert total[0].item() == pytest.approx(0.0, abs=0.8)
    assert total[1].item() == 0.0
    assert grad[0].sum().item() == pytest.approx(3)
    assert not grad[1].any()
