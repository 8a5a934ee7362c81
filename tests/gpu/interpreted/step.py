"""The whole step in Triton's interpreter: compared with the contract, and bit-identical with itself.

Run by tests/gpu/test_interpreted.py in its own process.
"""

import pytest
import torch

from model.gpu.triton.step import TritonStep
from tests.support.networks import triton_interpreter
from tests.support.networks.gpu_networks import SIZES, filled_block, fp16_network, noise, slabs_of
from tutti_asr_lab.gpu.reference import ReferenceStep

CAPACITY = 7


def step_of(network, slabs, rows=4, steps=4):
    """Return a step with poisoned buffers: it must not read memory that it has not written."""
    step = TritonStep(network, slabs, largest_rows=rows, largest_steps=steps)
    for buffer in (step.input0, step.input1, *step.x, step.normed, step.gates, step.states, step.features.power):
        buffer.fill_(float("nan"))
    step.scratch.partial.fill_(float("nan"))
    return step


def run(step, network, pcm, read, write, *, bucket=None):
    """Return log-probabilities (B, T, V) of rows that read and write these rows of the slabs."""
    block = filled_block(network.config, pcm, [*read, CAPACITY], write, bucket)
    step.enqueue(block, len(block.read), pcm.shape[1] // network.config.step_samples)
    assert not block.out[: len(pcm)].isnan().any()
    return block.out[: len(pcm)]


@pytest.mark.parametrize("size", list(SIZES))
def test_a_step_agrees_with_the_contract(size):
    """Outputs within 2e-3, states within some roundings, from random states, for rows that move or stay."""
    network = fp16_network(SIZES[size])
    pcm = noise(3, 2 * network.config.step_samples)
    ours, wanted = (slabs_of(network, CAPACITY, seed=1) for _ in range(2))
    out = run(step_of(network, ours), network, pcm, [5, 0, 2], [5, 1, 2])
    reference = run(ReferenceStep(network, wanted), network, pcm, [5, 0, 2], [5, 1, 2])
    assert (out - reference).abs().max() < 2e-3
    for name, slab in ours.items():
        assert (slab.float() - wanted[name].float()).abs().max() < 2e-2 * max(1, wanted[name].abs().max() / 8), name
        assert torch.equal(slab[[0, 3, 4, 6, 7, 8]], wanted[name][[0, 3, 4, 6, 7, 8]]), name


@pytest.mark.parametrize("size", list(SIZES))
def test_a_chunk_is_bit_identical_to_single_steps(size):
    network = fp16_network(SIZES[size])
    samples = network.config.step_samples
    pcm = noise(2, 3 * samples)
    whole, single = (slabs_of(network, CAPACITY, seed=2) for _ in range(2))
    out = run(step_of(network, whole), network, pcm, [CAPACITY, 4], [1, 4])
    step = step_of(network, single)
    read, parts = [CAPACITY, 4], []
    for start in range(0, 3 * samples, samples):
        parts.append(run(step, network, pcm[:, start : start + samples], read, [1, 4]))
        read = [1, 4]
    assert torch.equal(out, torch.cat(parts, dim=1))
    assert all(torch.equal(whole[name], single[name]) for name in whole)


@pytest.mark.parametrize("size", ["even", "odd"])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_a_larger_bucket(size):
    network = fp16_network(SIZES[size])
    rows = 5
    pcm = noise(rows, network.config.step_samples)
    slots = [3, 6, 0, 2, 5]
    together = slabs_of(network, CAPACITY, seed=3)
    out = run(step_of(network, together, rows=8), network, pcm, slots, slots, bucket=8)
    assert not together["gru0"][CAPACITY].any()
    for row in range(rows):
        alone = slabs_of(network, CAPACITY, seed=3)
        mine = run(step_of(network, alone), network, pcm[row : row + 1], slots[row : row + 1], slots[row : row + 1])
        assert torch.equal(mine[0], out[row])
        assert all(torch.equal(alone[name][slots[row]], together[name][slots[row]]) for name in alone)


def test_a_step_of_wide_tiles_has_the_bits_of_narrow_ones():
    """Twenty rows use programs of 32 and 64 columns, one row uses 8."""
    network = fp16_network(SIZES["even"])
    rows = 20
    pcm = noise(rows, network.config.step_samples)
    slabs = slabs_of(network, 20)
    block = filled_block(network.config, pcm, [20] * 21, range(20))
    step_of(network, slabs, rows=rows, steps=1).enqueue(block, rows, 1)
    alone = slabs_of(network, CAPACITY)
    mine = run(step_of(network, alone, steps=1), network, pcm[-1:], [CAPACITY], [0])
    assert torch.equal(mine[0], block.out[-1])
    assert torch.equal(alone["gru1"][0], slabs["gru1"][19])


def test_the_order_in_which_programs_run_changes_no_bit_of_a_step():
    network = fp16_network(SIZES["odd"])
    pcm = noise(3, network.config.step_samples)
    found = []
    for reverse in (False, True):
        slabs = slabs_of(network, CAPACITY, seed=4)
        step = step_of(network, slabs)
        if reverse:
            with triton_interpreter.programs_reversed():
                out = run(step, network, pcm, [0, 1, 2], [0, 1, 2])
        else:
            out = run(step, network, pcm, [0, 1, 2], [0, 1, 2])
        found.append((out, slabs))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(slab, found[1][1][name]) for name, slab in found[0][1].items())


@pytest.mark.parametrize("size", ["even", "odd"])
def test_launches_of_the_second_stream_may_run_last(size, monkeypatch):
    """The states that they store lie in no buffer that a later launch overwrites."""
    network = fp16_network(SIZES[size])
    pcm = noise(2, network.config.step_samples)
    usual, late = (slabs_of(network, CAPACITY, seed=5) for _ in range(2))
    run(step_of(network, usual), network, pcm, [0, 1], [0, 1])
    step = step_of(network, late)
    shift, waiting = step.lookahead.enqueue_shift, []
    monkeypatch.setattr(step.lookahead, "enqueue_shift", lambda *arguments: waiting.append(arguments))
    monkeypatch.setattr(step.aside, "join", lambda: shift(*waiting.pop()))
    run(step, network, pcm, [0, 1], [0, 1])
    assert torch.equal(usual["lookahead"], late["lookahead"])


def test_a_step_shorter_than_the_windows_overlap_is_rejected():
    network = fp16_network(SIZES["even"])
    network.features.overlap = 1281
    with pytest.raises(ValueError, match="shorter than the overlap"):
        TritonStep(network, slabs_of(network, 1), largest_rows=1, largest_steps=1)
