"""Muon: bits equal to torch's, orthogonal in both precisions, matrices distributed completely and evenly."""

import copy

import pytest
import torch
from torch import nn

from tutti_asr_lab.training.acoustic.optimizer.muon import Muon, cost, orthogonal, share_out
from tutti_asr_lab.training.acoustic.parallel.team import Team

SHAPES = ((96, 40), (40, 96), (64, 64))


def matrices():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def test_steps_equal_those_of_torch_to_the_bit():
    ours = matrices()
    theirs = copy.deepcopy(ours)
    muon = Muon(ours, 0.05, torch.bfloat16, Team())
    reference = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        muon.step(0.01)
        reference.step()
    assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_in_fp32_singular_values_are_near_one_for_any_scale(shape):
    torch.manual_seed(1)
    for scale in (1e-6, 1.0, 1e6):
        found = torch.linalg.svdvals(orthogonal(torch.randn(shape) * scale, torch.float32))
        assert found.min() > 0.3
        assert found.max() < 1.3


def test_a_zero_gradient_only_applies_the_weight_decay():
    assert torch.equal(orthogonal(torch.zeros(4, 6), torch.float32), torch.zeros(4, 6))


@pytest.mark.parametrize("processes", [1, 2, 4, 16])
def test_every_matrix_is_computed_by_one_process_and_the_load_is_even(processes):
    costs = [cost(shape) for shape in ((1248, 416),) * 6 + ((416, 1536), (416, 416), (256, 480))]
    shares = share_out(costs, processes)
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    loads = [sum(costs[index] for index in share) for share in shares]
    assert max(loads) <= max(1.15 * sum(costs) / processes, *costs)


def test_momentum_is_restored():
    first, second = matrices(), matrices()
    one, two = (Muon(m, 0.0, torch.float32, Team()) for m in (first, second))
    for matrix in first:
        matrix.grad = torch.randn_like(matrix)
    one.step(0.01)
    with torch.no_grad():
        for mine, theirs in zip(second, first, strict=True):
            mine.copy_(theirs)
            mine.grad = theirs.grad
    two.load_state_dict(one.state_dict())
    one.step(0.01)
    two.step(0.01)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
