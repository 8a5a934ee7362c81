"""The source of the whole-layer GRU kernel compiled by g++: compared with float64, the recurrence and itself."""

from dataclasses import replace

import pytest
import torch

from tests.lab.gpu.gru_emulation import DONE, Layer, WholeLayer, build, reference, schedule
from tutti_asr_lab.gpu.layer import GROUP, layer_layout
from tutti_asr_lab.gpu.pack import layout_of

ROWS, FRAMES = 4, 4
HIDDEN = [64, 80, 272]
LAYOUTS = {hidden: layer_layout(hidden)[0] for hidden in HIDDEN}
# As in a layer of 2,048: fragments of a warp stay in shared memory, move on to registers, or are loaded to registers.
LAYOUTS[272] = replace(LAYOUTS[272], register_fragments=7, bulk_fragments=9)


def parameters(hidden):
    random = torch.Generator().manual_seed(hidden)
    w, u = (torch.randn(3 * hidden, hidden, generator=random).div(hidden**0.5).half() for _ in range(2))
    b, c = (torch.randn(3 * hidden, generator=random) / 8 for _ in range(2))
    scale, shift = (torch.randn(hidden, generator=random).half() for _ in range(2))
    return {"input": w, "input_bias": b, "scale": scale, "shift": shift, "recurrent": u, "recurrent_bias": c}


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """Return a factory of layers by hidden size; each size is compiled once."""
    libraries = {}

    def layer(hidden):
        layout = LAYOUTS[hidden]
        if hidden not in libraries:
            folder = tmp_path_factory.mktemp("layer")
            libraries[hidden] = build(layout, folder, source="layer_emulated.cpp", GROUP=GROUP)
        return WholeLayer(libraries[hidden], layout, **parameters(hidden))

    return layer


class Batch:
    """Inputs and states of `rows` streams."""

    def __init__(self, hidden, rows=ROWS, frames=FRAMES):
        random = torch.Generator().manual_seed(rows)
        self.x = torch.randn(rows, frames, hidden, generator=random).half()
        self.slab = (torch.rand(rows + 3, hidden, generator=random) * 2 - 1).half()
        self.slots = torch.randperm(rows, generator=random).int() + 1

    def run(self, layer, chunks=(FRAMES,), when=None, chosen=None):
        """Return outputs, gates and slab after chunks of the chosen streams."""
        chosen = torch.arange(len(self.x)) if chosen is None else torch.tensor(chosen)
        slab, slots, results, at = self.slab.clone(), self.slots[chosen].contiguous(), [], 0
        for frames in chunks:
            x = self.x[chosen, at : at + frames].contiguous()
            out = torch.full_like(x, torch.nan)
            gates = x.new_full((len(x), frames, 3 * x.shape[2]), torch.nan)
            count = torch.tensor([len(x)], dtype=torch.int32)
            assert layer.launch(x, out, gates, slab, slots, slots, count, frames, when) == DONE
            assert not layer.error.any()
            results.append((out, gates))
            at += frames
        outs, gates = zip(*results, strict=True)
        return torch.cat(outs, dim=1), torch.cat(gates, dim=1), slab


def equal(got, wanted):
    return all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (2, 3), (8, 2), (1, 16)])
def test_values_are_those_of_float64_up_to_roundings_to_fp16(layers, hidden, rows, frames):
    layer, batch = layers(hidden), Batch(hidden, rows, frames)
    out, gates, slab = batch.run(layer, (frames,))
    x = batch.x.double()
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + layer.epsilon).sqrt()
    normal = (normal * layer.scale.double() + layer.shift.double()).half().double()
    error = gates - (normal @ layer.input.double().t() + layer.input_bias.double())
    assert error.abs().max() < 2.0**-6  # for gates up to 8: a rounding, and those of the normalized columns
    assert error.square().mean().sqrt() < 2.0**-11
    wanted, last = reference(layer.recurrent, layer.recurrent_bias, gates, batch.x, batch.slab[batch.slots.long()])
    assert (out - wanted).abs().max() < 2.0**-8
    assert (slab[batch.slots.long()] - last).abs().max() <= 2.0**-10


@pytest.mark.parametrize("hidden", HIDDEN)
def test_bits_are_those_of_the_recurrence_kernel(layers, hidden, tmp_path):
    """Fragments in other memory, and in other kernels, give the same sums."""
    layer, batch = layers(hidden), Batch(hidden)
    out, gates, slab = batch.run(layer)
    layout = layout_of(hidden)
    alone = Layer(build(layout, tmp_path), layout, layer.recurrent, layer.recurrent_bias)
    own, states = torch.empty_like(batch.x), batch.slab.clone()
    count = torch.tensor([ROWS], dtype=torch.int32)
    assert alone.launch(gates, batch.x, own, states, batch.slots, batch.slots, count, FRAMES) == DONE
    assert equal((own, states), (out, slab))


@pytest.mark.parametrize("hidden", [64, 80])
@pytest.mark.parametrize("chunks", [(4,), (2, 2), (1, 3)], ids=str)
def test_bits_do_not_depend_on_the_schedule_nor_on_the_cut_into_chunks(layers, hidden, chunks):
    wanted = Batch(hidden).run(layers(hidden))
    blocks = LAYOUTS[hidden].blocks
    whens = [schedule(seed) for seed in range(3)]
    whens += [schedule(seed, starved_block=seed % blocks) for seed in range(blocks)]
    whens += [schedule(seed, starved_warp=seed) for seed in range(4)]
    for when in whens:
        assert equal(Batch(hidden).run(layers(hidden), chunks, when), wanted)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_bits_of_a_row_do_not_depend_on_other_rows_nor_on_its_position(layers, hidden):
    batch = Batch(hidden)
    out, gates, slab = batch.run(layers(hidden))
    for chosen in ([3], [2, 0], [3, 1, 0, 2]):
        own = batch.slots[chosen].long()
        alone, products, states = batch.run(layers(hidden), chosen=chosen)
        assert equal((alone, products, states[own]), (out[chosen], gates[chosen], slab[own]))
        others = [row for row in range(len(slab)) if row not in own]
        assert equal((states[others],), (batch.slab[others],))


def test_a_launch_with_a_missing_block_sets_the_error_of_the_step(layers, tmp_path):
    layer, batch = layers(64), Batch(64, 1, 2)
    layer.library = build(layer.layout, tmp_path, source="layer_emulated.cpp", spin_limit=64, GROUP=GROUP)
    out, gates, slab = torch.empty_like(batch.x), torch.empty(1, 2, 192).half(), batch.slab.clone()
    count = torch.ones(1, dtype=torch.int32)
    when = schedule(absent_block=1)
    assert layer.launch(batch.x, out, gates, slab, batch.slots, batch.slots, count, 2, when) == DONE
    assert layer.error.item() == 1
    assert equal((slab,), (batch.slab,))


@pytest.mark.parametrize("hidden", [64, 80])
def test_the_host_reserves_the_shared_memory_that_the_kernel_lays_out(layers, hidden):
    assert layers(hidden).library.shared_bytes() <= layer_layout(hidden)[1]


BUGS = {
    "gates before the columns are normalized": {
        "    block_barrier();\n    float sum[TILES][GROUP_TILES][4];": "float sum[TILES][GROUP_TILES][4];"
    },
    "partial sums over columns that are still read": {"block_barrier();  // the columns have been read": ""},
    "segments added before all are stored": {"    block_barrier();\n    add_segments": "    add_segments"},
    "U read before it is loaded": {"await_bulk(&shared.arrived);": ""},
    "a column of another row": {"columns_of(shared)[row] + place.first": "columns_of(shared)[row ^ 1] + place.first"},
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_mutation_is_detected(layers, tmp_path, bug):
    wanted, broken = Batch(80).run(layers(80)), layers(80)
    broken.library = build(broken.layout, tmp_path, source="layer_emulated.cpp", changes=BUGS[bug], GROUP=GROUP)
    whens = [schedule(seed, starved_warp=seed % 8) for seed in range(16)]
    assert not all(equal(Batch(80).run(broken, when=when), wanted) for when in whens)
