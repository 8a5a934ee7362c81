"""The probability of all label sequences: against their enumeration, its gradient against differences."""

import itertools
import math

import pytest
import torch

from model.training.losses.denominator import Denominator, denominator
from model.training.losses.label_model import label_trigram

SEQUENCES = ([1, 2, 3], [2, 2, 1], [3, 1], [])


def drawn(rows, frames, labels, seed=0):
    logits = torch.randn(rows, frames, labels + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(logits, -1)


def by_enumeration(log_probs, trigram):
    total = 0.0
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        labels = [label for label, _ in itertools.groupby(path) if label]
        likely, before, last = math.exp(sum(float(row[at]) for row, at in zip(log_probs, path, strict=True))), 0, 0
        for label in (*labels, 0):
            likely *= float(trigram[last, before, label])
            before, last = last, label
        total += likely
    return math.log(total)


def test_a_trigram_is_a_distribution_that_prefers_what_it_has_seen():
    trigram = label_trigram(SEQUENCES, 3)
    assert torch.allclose(trigram.sum(2), torch.ones(4, 4))
    assert (trigram > 0).all()
    assert trigram[2, 1].argmax() == 3


def test_the_sum_is_that_of_all_paths_each_weighed_by_its_labels():
    trigram = label_trigram(SEQUENCES, 3).double()
    log_probs, frames = drawn(3, 4, 3), torch.tensor([4, 3, 1])
    found = Denominator.apply(log_probs, frames, trigram)
    for row, (count, total) in enumerate(zip(frames.tolist(), found.tolist(), strict=True)):
        assert total == pytest.approx(by_enumeration(log_probs[row, :count], trigram), abs=1e-12)


def test_the_gradient_is_the_derivative_and_none_of_padding():
    trigram = label_trigram(SEQUENCES, 3).double()
    log_probs, frames = drawn(2, 5, 3).requires_grad_(), torch.tensor([5, 3])
    assert torch.autograd.gradcheck(lambda x: denominator(x, frames, trigram), (log_probs,))
    (grad,) = torch.autograd.grad(denominator(log_probs, frames, trigram), (log_probs,))
    assert torch.allclose(grad[0].sum(1), torch.ones(5, dtype=torch.float64))
    assert not grad[1, 3:].any()


def test_long_recordings_stay_finite_in_single_precision():
    trigram = label_trigram(SEQUENCES, 3)
    log_probs = (8 * drawn(2, 700, 3)).log_softmax(-1).float().requires_grad_()
    total = denominator(log_probs, torch.tensor([700, 650]), trigram)
    total.backward()
    assert math.isfinite(total.item())
    assert torch.allclose(log_probs.grad[0].sum(1), torch.ones(700), atol=1e-4)
