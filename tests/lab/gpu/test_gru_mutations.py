"""Mutations of the persistent GRU kernel: each one is detected by the comparisons of the kernel's tests."""

import pytest
import torch

from tests.lab.gpu.gru_emulation import DONE, Layer, build, schedule
from tutti_asr_lab.gpu.pack import layout_of

LAYOUT = layout_of(64)
BARRIER = "block_barrier();\n        const unsigned start"
PUBLISH = "store_exchange_if(to, word | mark_of(counted), publishes);"
BUGS = {
    "a word is accepted with any mark": {"return source.exists && !source.state && (": "return false && ("},
    "one buffer for all frames": {"(frame & 1u) * BUFFER_WORDS": "0u"},
    "a mark that does not change": {"return frame & 2u ? 0u : MARK;": "return MARK;"},
    "the mark before the value": {PUBLISH: PUBLISH.replace("word | ", "") + PUBLISH},
    "a state row written before all blocks have read it": {
        "if (frame > 0 && frame + 1 == a.frames)": "if (frame + 1 == a.frames)"
    },
    "epochs that do not grow": {"shared.epochs[thread_index()] + published": "shared.epochs[thread_index()]"},
    "one epoch for all rows": {
        "shared.epochs[row] + frame;": "shared.epochs[0] + frame;",
        "shared.epochs[row] + frame - 1;": "shared.epochs[0] + frame - 1;",
    },
    "one set of partial sums": {
        "shared.partial[item % 2][place": "shared.partial[0][place",
        "shared, place, in, item % 2, frame": "shared, place, in, 0, frame",
    },
    "no barrier before the gates": {BARRIER: BARRIER.replace("block_barrier();", "")},
}


def launches(library, when):
    """Return bits of outputs and states after launches of changing rows and frames that share a workspace."""
    random = torch.Generator().manual_seed(7)
    hidden = LAYOUT.hidden
    weights = (torch.randn(3 * hidden, hidden, generator=random) / hidden**0.5).half()
    layer = Layer(library, LAYOUT, weights, torch.randn(3 * hidden, generator=random) / 8)
    slab = (torch.rand(20, hidden, generator=random) * 2 - 1).half()
    slots = torch.randperm(20, generator=random).int()
    results = []
    for rows, frames in ((9, 4), (1, 1), (9, 2), (3, 1), (17, 3), (17, 1), (2, 3), (17, 3)):
        gates = torch.randn(rows, frames, 3 * hidden, generator=random).half()
        x = torch.randn(rows, frames, hidden, generator=random).half()
        count = torch.tensor([rows], dtype=torch.int32)
        outcome = layer.launch(gates, x, x, slab, slots[:rows], slots[:rows], count, frames, when)
        results += [torch.tensor([outcome, layer.error]), x, slab.clone()]
    return [result.view(torch.int16) for result in results]


def schedules():
    """Yield fair schedules, and schedules in which one block, or one warp of each block, is delayed."""
    yield from (schedule(seed, bound=1 << 20) for seed in range(4))
    yield from (schedule(seed, starved_block=seed % LAYOUT.blocks, bound=1 << 20) for seed in range(12))
    yield from (schedule(seed, starved_warp=seed % 8, bound=1 << 20) for seed in range(16))


def differs(library, wanted):
    """Return whether a schedule gives other bits than the kernel's."""
    return any(
        not all(torch.equal(a, b) for a, b in zip(launches(library, when), wanted, strict=True)) for when in schedules()
    )


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return launches(build(LAYOUT, tmp_path_factory.mktemp("gru")), schedule())


def test_the_unchanged_kernel_is_not_reported(wanted, tmp_path):
    assert not differs(build(LAYOUT, tmp_path), wanted)


@pytest.mark.parametrize("bug", BUGS)
def test_a_mutation_is_detected(wanted, tmp_path, bug):
    assert differs(build(LAYOUT, tmp_path, spin_limit=1 << 12, changes=BUGS[bug]), wanted)


def run_without_block(library):
    """Return outcome and error word of a launch in which one block never starts."""
    hidden = LAYOUT.hidden
    layer = Layer(library, LAYOUT, torch.zeros(3 * hidden, hidden).half(), torch.zeros(3 * hidden))
    gates, x = torch.zeros(1, 2, 3 * hidden).half(), torch.zeros(1, 2, hidden).half()
    slot, rows = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    outcome = layer.launch(gates, x, x, x[0], slot, slot, rows, 2, schedule(absent_block=1, bound=1 << 18))
    return outcome, layer.error


@pytest.mark.parametrize(
    ("bound", "ends"), [("polls >= SPIN_LIMIT || (", True), ("(", False)], ids=["with a bound on spinning", "without"]
)
def test_a_launch_whose_blocks_do_not_all_start_ends_because_spinning_is_bounded(tmp_path, bound, ends):
    library = build(LAYOUT, tmp_path, spin_limit=256, changes={"polls >= SPIN_LIMIT || (": bound})
    assert (run_without_block(library) == (DONE, 1)) == ends
