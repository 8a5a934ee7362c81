"""Packing of recurrent weights into fragments, and the sizes of the persistent GRU kernel's layouts."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.gpu.segments import recurrent_segments
from tutti_asr_lab.gpu.pack import (
    LANES,
    MOST_BLOCKS,
    MOST_SHARED_BYTES,
    WARPS,
    Layout,
    _sources,
    backward_layout_of,
    layout_of,
    pack,
    pack_transposed,
)

LAYOUTS = st.one_of(
    st.integers(2, 24).map(lambda steps: layout_of(16 * steps)),
    st.integers(1, 4).map(lambda blocks: Layout(hidden=80 * blocks, units=20, register_fragments=4)),
)


def unpack(packed, layout):
    """Invert `pack`."""
    hidden = layout.hidden
    padded = packed.new_zeros(3 * hidden + 1, hidden + 1)
    rows, columns = _sources(layout)
    for block in range(layout.blocks):
        padded[rows[block], columns] = packed[block]
    return padded[:-1, :-1]


@given(LAYOUTS, st.integers(0, 1000))
def test_unpacking_inverts_packing_and_the_padding_is_zero(layout, seed):
    shape = (3 * layout.hidden, layout.hidden)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()
    packed = pack(weights, layout)
    assert packed.shape == (layout.blocks, WARPS, 2 * layout.pairs, layout.tiles, LANES, 4, 2)
    assert torch.equal(unpack(packed, layout), weights)
    assert packed.count_nonzero() == weights.count_nonzero()


@given(st.integers(2, 24).map(lambda steps: 16 * steps), st.integers(0, 1000))
def test_weights_for_the_backward_pass_are_transposed_by_gate(hidden, seed):
    weights = torch.randn(3 * hidden, hidden, generator=torch.Generator().manual_seed(seed))
    gates = unpack(pack_transposed(weights, backward_layout_of(hidden)), layout_of(hidden)).split(hidden)
    assert torch.equal(torch.cat([gate.t() for gate in gates]), weights)


@given(st.integers(2, 160).map(lambda steps: 16 * steps))
def test_segments_cover_k_in_whole_steps_and_differ_by_one_step_at_most(hidden):
    cuts = recurrent_segments(hidden)
    lengths = [end - first for first, end in itertools.pairwise(cuts)]
    assert (cuts[0], cuts[-1]) == (0, hidden)
    assert len(lengths) == min(WARPS, hidden // 16)
    assert all(length % 16 == 0 for length in lengths)
    assert max(lengths) - min(lengths) <= 16
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("layout", [layout_of, backward_layout_of])
@given(steps=st.integers(2, 132))
def test_a_block_of_each_layout_fits_a_multiprocessor(layout, steps):
    found = layout(16 * steps)
    assert found.blocks <= MOST_BLOCKS
    assert found.shared_bytes <= MOST_SHARED_BYTES
    assert found.blocks * found.units == 16 * steps
    assert 0 < found.register_fragments <= found.fragments


@given(st.integers(27, 32))
def test_large_layers_have_blocks_of_twenty_units(blocks):
    assert (layout_of(80 * blocks).units, layout_of(80 * blocks).blocks) == (20, 4 * blocks)


@pytest.mark.parametrize("hidden", [0, 16, 100, 2128, 2560, 2640, 4096])
@pytest.mark.parametrize("layout", [layout_of, backward_layout_of])
def test_sizes_without_a_layout_are_rejected(hidden, layout):
    if (hidden, layout) != (2560, layout_of):
        with pytest.raises(ValueError, match=f"{hidden} units"):
            layout(hidden)
