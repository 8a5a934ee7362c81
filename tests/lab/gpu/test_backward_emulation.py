"""The persistent GRU kernel's backward pass compiled by g++: against float64, itself under schedules, and mutations."""

import pytest
import torch

from tests.lab.gpu.gru_backward_emulation import EmulatedBackward, backpropagate, build_backward
from tests.lab.gpu.gru_emulation import DONE, schedule
from tutti_asr_lab.gpu.pack import BackwardLayout, backward_layout_of

LAYOUTS = {
    "one run per step": backward_layout_of(64),
    "an odd number of steps, weights in shared memory": BackwardLayout(hidden=80, units=16, register_fragments=2),
    "more steps than warps": backward_layout_of(272),
}
SMALL = "one run per step"
ROWS, FRAMES = 11, 4
EPOCHS = slice(64, 64 + 128)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Return a factory of kernels with fresh workspaces by layout name; each layout is compiled once."""
    libraries = {}

    def made(name, when=None):
        if name not in libraries:
            libraries[name] = build_backward(LAYOUTS[name], tmp_path_factory.mktemp("backward"))
        return EmulatedBackward(libraries[name], LAYOUTS[name], when or schedule())

    return made


class Batch:
    """Weights, factors and output gradients of `rows` rows; gradients differ in size by row, as those of losses do."""

    def __init__(self, hidden, rows=ROWS, frames=FRAMES, seed=1):
        random = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(3 * hidden, hidden, generator=random) / hidden**0.5
        self.factors = (torch.randn(rows, frames, 5, hidden, generator=random) / 2).half()
        self.factors[:, :, 4] = torch.rand(rows, frames, hidden, generator=random).half()
        scale = 10.0 ** torch.linspace(-6, 6, rows)
        self.outputs = torch.randn(rows, frames, hidden, generator=random) * scale[:, None, None]
        self.rows, self.frames, self.hidden = rows, frames, hidden

    def run(self, kernel, chosen=None):
        """Return gradients of products, of candidates and of h(0), of the chosen rows."""
        chosen = torch.arange(self.rows) if chosen is None else torch.tensor(chosen)
        count = len(chosen)
        products = torch.full((count, self.frames, 3 * self.hidden), torch.nan).bfloat16()
        candidates = torch.full((count, self.frames, self.hidden), torch.nan).bfloat16()
        first = torch.full((count, self.hidden), torch.nan)
        kernel.load(self.weights)
        kernel.enqueue(self.factors[chosen], self.outputs[chosen], products, candidates, first)
        kernel.check()
        return products, candidates, first

    def reference(self):
        return backpropagate(self.factors, self.outputs.double(), self.weights)


def equal(got, wanted):
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (8, 2), (9, 1), (ROWS, FRAMES)])
def test_gradients_are_those_of_float64_up_to_roundings_to_bf16(kernels, name, rows, frames):
    batch = Batch(LAYOUTS[name].hidden, rows, frames)
    for found, wanted in zip(batch.run(kernels(name)), batch.reference(), strict=True):
        size = wanted.flatten(1).abs().amax(1)
        error = (found - wanted).flatten(1).abs()
        assert (error.amax(1) / size).max() < 2.0**-7  # a rounding to bf16 may fall the other way and be carried on
        assert (error.square().mean(1).sqrt() / size).max() < 2.0**-12


@pytest.mark.parametrize("name", LAYOUTS)
def test_sizes_are_those_that_the_host_computes(kernels, name):
    kernel = kernels(name)
    assert kernel.library.shared_bytes() == kernel.layout.shared_bytes
    assert kernel.library.workspace_words() == kernel.layout.workspace_words


@pytest.mark.parametrize(("name", "rows"), [*((name, 3) for name in LAYOUTS), (SMALL, ROWS)])
def test_bits_do_not_depend_on_the_schedule(kernels, name, rows):
    batch, blocks = Batch(LAYOUTS[name].hidden, rows), LAYOUTS[name].blocks
    wanted = batch.run(kernels(name))
    whens = [schedule(seed) for seed in range(1, 3)]
    whens += [schedule(seed, starved_block=seed % blocks) for seed in range(min(blocks, 5))]
    whens += [schedule(seed, starved_warp=seed) for seed in range(3)]
    for when in whens:
        assert equal(batch.run(kernels(name, when)), wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_bits_of_a_row_do_not_depend_on_other_rows_nor_on_its_position(kernels, name):
    batch = Batch(LAYOUTS[name].hidden)
    wanted = batch.run(kernels(name))
    for chosen in ([3], [10, 3], [10, 0, 9, 1, 2, 4, 5, 6, 3]):
        assert equal(batch.run(kernels(name), chosen), [each[chosen] for each in wanted])


def test_frames_after_the_end_of_a_row_get_no_gradient_and_change_no_bit(kernels):
    """Rows of a batch are as long as its longest one; the loss has no gradient in the padding."""
    batch = Batch(64, rows=3, frames=5)
    batch.outputs[:, 3:] = 0
    products, candidates, first = batch.run(kernels(SMALL))
    assert not products[:, 3:].any()
    assert not candidates[:, 3:].any()
    batch.factors, batch.outputs, batch.frames = batch.factors[:, :3].contiguous(), batch.outputs[:, :3], 3
    assert equal(batch.run(kernels(SMALL)), (products[:, :3], candidates[:, :3], first))


@pytest.mark.parametrize("count", [2**16 - 3, 2**32 - 3])
def test_a_mark_or_a_count_that_starts_again_at_zero_changes_nothing(kernels, count):
    batch, kernel = Batch(64), kernels(SMALL)
    wanted = batch.run(kernels(SMALL))
    kernel.workspace[EPOCHS] = torch.tensor(count).int()
    for _ in range(2):
        assert equal(batch.run(kernel), wanted)
    assert kernel.workspace[EPOCHS][0] == torch.tensor(count + 2 * FRAMES).int()


def test_a_launch_with_a_missing_block_ends_with_the_error_word(kernels, tmp_path):
    library = build_backward(LAYOUTS[SMALL], tmp_path, spin_limit=64)
    kernel = EmulatedBackward(library, LAYOUTS[SMALL], schedule(absent_block=2))
    with pytest.raises(Exception, match="aborted"):
        Batch(64, rows=9).run(kernel)
    assert (kernel.outcome, int(kernel.workspace[0])) == (DONE, 1)
    kernel.when = schedule()
    with pytest.raises(Exception, match="aborted"):
        Batch(64).run(kernel)  # later launches leave at once until the workspace is zeroed
    assert not kernel.workspace[EPOCHS].any()


def test_a_gradient_that_is_not_finite_stays_in_its_row(kernels):
    batch = Batch(64)
    wanted = batch.run(kernels(SMALL))
    batch.outputs[4, 2, 7] = torch.nan
    found = batch.run(kernels(SMALL))
    others = [row for row in range(ROWS) if row != 4]
    assert equal([each[others] for each in found], [each[others] for each in wanted])
    assert found[2][4].isnan().all()


BARRIER = "block_barrier();\n        if (place.group == item % GATE_GROUPS)"
STORE = "store_word_if(to, static_cast<unsigned long long>(high) << 32 | low, stores);"
BUGS = {
    "a word is accepted with any mark": {"present(source, place, load) && old != 0u;": "false && old != 0u;"},
    "one buffer for all counts": {"(count & 1u) * BUFFER_WORDS": "0u"},
    "the mark before the value": {STORE: f"{STORE.replace('| low', '')} {STORE}"},
    "epochs that do not grow": {"shared.epochs[thread_index()] + a.frames": "shared.epochs[thread_index()]"},
    "one epoch for all rows": {
        "shared.epochs[row] + turn;": "shared.epochs[0] + turn;",
        "shared.epochs[row] + turn + 1;": "shared.epochs[0] + turn + 1;",
    },
    "one set of partial sums": {
        "shared.partial[item % 2][place": "shared.partial[0][place",
        "finish_item(a, shared, place, in, item % 2,": "finish_item(a, shared, place, in, 0,",
    },
    "no barrier before the gates": {BARRIER: BARRIER.replace("block_barrier();", "")},
    "the factors of a frame at the other end": {
        "(a.frames - 1 - turn);\n    const half_bits": "turn;\n    const half_bits"
    },
}


def launches(library, when):
    """Return results of launches of changing rows and frames that share a workspace.

    After the first one, the marks of eight rows have gone round, as if these had been launched often in the meantime.
    """
    kernel, results = EmulatedBackward(library, LAYOUTS[SMALL], when), []
    for launch, (rows, frames) in enumerate(((9, 3), (9, 3), (1, 1), (9, 2), (3, 1), (11, 3), (2, 3))):
        batch = Batch(64, rows, frames, seed=launch)
        try:
            results += batch.run(kernel)
        except Exception as error:  # noqa: BLE001 - an abort is a difference
            results.append(error)
        if launch == 0:
            kernel.workspace[EPOCHS][:8] += 2**16 - frames
            kernel.workspace[EPOCHS.stop :].view(2, 16, -1)[:, 0] = 0  # of the tile of these rows
    return results


def differs(library, wanted):
    """Return whether a fair or a starving schedule gives other bits than the kernel's."""
    whens = [schedule(seed, bound=1 << 20) for seed in range(2)]
    whens += [schedule(seed, starved_block=seed % 4, bound=1 << 20) for seed in range(6)]
    whens += [schedule(seed, starved_warp=seed % 8, bound=1 << 20) for seed in range(8)]
    for when in whens:
        found = launches(library, when)
        if any(isinstance(each, Exception) for each in found) or not equal(found, wanted):
            return True
    return False


@pytest.fixture(scope="module")
def wanted(kernels):
    return launches(kernels(SMALL).library, schedule())


def test_the_unchanged_kernel_is_not_reported(kernels, wanted):
    assert not differs(kernels(SMALL).library, wanted)


@pytest.mark.parametrize("bug", BUGS)
def test_a_mutation_is_detected(wanted, tmp_path, bug):
    assert differs(build_backward(LAYOUTS[SMALL], tmp_path, spin_limit=1 << 12, changes=BUGS[bug]), wanted)
