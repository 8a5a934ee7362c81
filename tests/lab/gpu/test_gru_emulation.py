"""The source of the persistent GRU kernel compiled by g++: compared with float64 and with itself."""

import ctypes

import pytest
import torch

from tests.lab.gpu.gru_emulation import DONE, Layer, build, reference, schedule
from tutti_asr_lab.gpu.pack import Layout, layout_of

LAYOUTS = {
    "one row of blocks": layout_of(64),
    "an odd number of k16 steps": layout_of(80),
    "more k16 steps than warps": layout_of(272),
    "20 units, weights in shared memory": Layout(hidden=160, units=20, register_fragments=5),
}
SMALL = ["one row of blocks", "an odd number of k16 steps"]
ROWS = 17
FRAMES = 4


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """Return a factory of layers by layout name; each layout is compiled once."""
    libraries = {}

    def layer(name):
        layout = LAYOUTS[name]
        if name not in libraries:
            libraries[name] = build(layout, tmp_path_factory.mktemp("gru"))
        random = torch.Generator().manual_seed(layout.hidden)
        weights = torch.randn(3 * layout.hidden, layout.hidden, generator=random) / layout.hidden**0.5
        return Layer(libraries[name], layout, weights.half(), torch.randn(3 * layout.hidden, generator=random) / 8)

    return layer


class Batch:
    """Inputs and states of `rows` streams; three more rows of the slab, one of them zero, belong to no stream."""

    def __init__(self, hidden, rows=ROWS, frames=FRAMES, seed=1):
        random = torch.Generator().manual_seed(seed)
        self.gates = torch.randn(rows, frames, 3 * hidden, generator=random).half()
        self.x = torch.randn(rows, frames, hidden, generator=random).half()
        self.slab = (torch.rand(rows + 3, hidden, generator=random) * 2 - 1).half()
        self.slab[rows + 1] = 0
        self.slots = torch.randperm(rows, generator=random).int() + 1
        self.rows, self.frames = rows, frames

    def run(self, layer, chunks=(FRAMES,), when=None, chosen=None):
        """Return outputs and slab after chunks of the chosen streams."""
        chosen = torch.arange(self.rows) if chosen is None else torch.tensor(chosen)
        slab, slots, outs, at = self.slab.clone(), self.slots[chosen].contiguous(), [], 0
        for frames in chunks:
            gates, x = (t[chosen, at : at + frames].contiguous() for t in (self.gates, self.x))
            out = torch.full_like(x, torch.nan)
            count = torch.tensor([len(chosen)], dtype=torch.int32)
            assert layer.launch(gates, x, out, slab, slots, slots, count, frames, when) == DONE
            assert layer.error == 0
            outs.append(out)
            at += frames
        return torch.cat(outs, dim=1), slab


def equal(got, wanted):
    return all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (2, 3), (8, 1), (9, 2), (ROWS, FRAMES)])
def test_values_are_those_of_float64_up_to_roundings_to_fp16(layers, name, rows, frames):
    layer = layers(name)
    batch = Batch(layer.layout.hidden, rows, frames)
    out, slab = batch.run(layer, (frames,))
    wanted, last = reference(layer.weights, layer.bias, batch.gates, batch.x, batch.slab[batch.slots.long()])
    assert (out - wanted).abs().max() < 2.0**-8  # for values below 8: half a step of fp16 for x + h, and one of h
    error = slab[batch.slots.long()] - last
    assert error.abs().max() <= 2.0**-10  # a rounding may fall the other way and be carried on
    assert error.square().mean().sqrt() < 2.0**-13


@pytest.mark.parametrize("name", LAYOUTS)
def test_sizes_are_those_that_the_host_computes(layers, name):
    layer = layers(name)
    assert layer.library.shared_bytes() == layer.layout.shared_bytes
    assert layer.library.workspace_words() == layer.layout.workspace_words


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("chunks", [(4,), (2, 2), (1, 1, 1, 1), (1, 3)], ids=str)
def test_bits_do_not_depend_on_the_schedule_nor_on_the_cut_into_chunks(layers, name, chunks):
    wanted = Batch(LAYOUTS[name].hidden).run(layers(name))
    blocks = LAYOUTS[name].blocks
    whens = [schedule(seed) for seed in range(3)]
    whens += [schedule(seed, starved_block=seed % blocks) for seed in range(blocks + 2)]
    whens += [schedule(seed, starved_warp=seed) for seed in range(4)]
    for when in whens:
        assert equal(Batch(LAYOUTS[name].hidden).run(layers(name), chunks, when), wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_bits_of_a_row_do_not_depend_on_other_rows_nor_on_its_position(layers, name):
    batch = Batch(LAYOUTS[name].hidden)
    out, slab = batch.run(layers(name))
    for chosen in ([3], [16, 3], [16, 0, 9, 1, 2, 4, 5, 6, 3], list(range(ROWS))[::-1]):
        own = batch.slots[chosen].long()
        alone, states = batch.run(layers(name), chosen=chosen)
        assert equal((alone, states[own]), (out[chosen], slab[own]))
        others = [row for row in range(len(slab)) if row not in own]
        assert equal((states[others],), (batch.slab[others],)), "a stream outside the batch was written"


@pytest.mark.parametrize("frames", [1, 2])
def test_rows_beyond_the_count_on_the_device_are_neither_computed_nor_written(layers, frames):
    layer = layers("one row of blocks")
    batch = Batch(layer.layout.hidden, rows=16, frames=frames)
    out, slab = torch.full_like(batch.x, torch.nan), batch.slab.clone()
    count = torch.tensor([9], dtype=torch.int32)
    assert layer.launch(batch.gates, batch.x, out, slab, batch.slots, batch.slots, count, frames) == DONE
    wanted, states = Batch.run(batch, layers("one row of blocks"), (frames,))
    assert equal((out[:9], slab[batch.slots[:9].long()]), (wanted[:9], states[batch.slots[:9].long()]))
    assert out[9:].isnan().all()
    assert equal((slab[batch.slots[9:].long()],), (batch.slab[batch.slots[9:].long()],))


def test_each_byte_of_later_weights_is_prefetched_once_and_no_others(layers):
    layer = layers("one row of blocks")
    batch = Batch(layer.layout.hidden, rows=1, frames=1)
    ahead = [torch.zeros(200_000, dtype=torch.int8), torch.zeros(48, dtype=torch.int8)]
    rows = torch.ones(1, dtype=torch.int32)
    layer.launch(batch.gates, batch.x, batch.x, batch.slab, batch.slots, batch.slots, rows, 1, ahead=ahead)
    for tensor in ahead:
        assert layer.library.prefetched(ctypes.c_void_p(tensor.data_ptr()), tensor.nbytes) == tensor.nbytes
    everything = sum(layer.library.prefetched(ctypes.c_void_p(t.data_ptr()), t.nbytes) for t in [*ahead, layer.packed])
    assert layer.library.prefetched(ctypes.c_void_p(0), ctypes.c_long(2**62)) == everything


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_output_may_be_written_over_the_input(layers, name):
    layer, batch = layers(name), Batch(LAYOUTS[name].hidden)
    x, slab = batch.x.clone(), batch.slab.clone()
    count = torch.tensor([ROWS], dtype=torch.int32)
    assert layer.launch(batch.gates, x, x, slab, batch.slots, batch.slots, count, FRAMES) == DONE
    assert equal((x, slab), batch.run(layers(name)))


@pytest.mark.parametrize("frames", [1, 3])
def test_a_launch_with_a_missing_block_ends_with_the_error_word_and_writes_no_state(layers, tmp_path, frames):
    layer = layers("one row of blocks")
    layer.library = build(layer.layout, tmp_path, spin_limit=64)
    batch = Batch(layer.layout.hidden, 9, frames)
    out, slab = torch.empty_like(batch.x), batch.slab.clone()
    count = torch.tensor([9], dtype=torch.int32)
    arguments = (batch.gates, batch.x, out, slab, batch.slots, batch.slots, count, frames)
    assert layer.launch(*arguments, schedule(absent_block=2)) == DONE
    assert layer.error == 1
    assert equal((slab,), (batch.slab,))
    out.fill_(torch.nan)
    assert layer.launch(*arguments) == DONE  # later launches leave at once until the workspace is zeroed
    assert out.isnan().all()
    assert equal((slab,), (batch.slab,))


def test_a_state_that_is_not_finite_stays_in_its_row_and_ends(layers):
    batch = Batch(LAYOUTS["one row of blocks"].hidden)
    out, slab = batch.run(layers("one row of blocks"))
    batch.slab[batch.slots[4].item()] = torch.nan
    broken, states = batch.run(layers("one row of blocks"))
    others = [r for r in range(ROWS) if r != 4]
    own = batch.slots[others].long()
    assert equal((broken[others], states[own]), (out[others], slab[own]))
    assert broken[4].isnan().all()
