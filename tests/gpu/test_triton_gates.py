"""Every Triton kernel compiled for an H100, without one: registers, shared memory, instructions.

The figures are in triton_limits.json. After a change of a kernel run with WRITE_TRITON_LIMITS=1 and read the diff.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from model.config import ModelConfig
from model.torch_network.network import Network
from tests.support.needs import need_package
from tests.support.networks.gpu_networks import empty_block

triton = need_package("triton")

from model.gpu.triton.launching import Launching  # noqa: E402
from model.gpu.triton.step import TritonStep  # noqa: E402
from tests.support.networks.triton_compiles import compiled, recorded  # noqa: E402

LIMITS = Path(__file__).parent / "triton_limits.json"
NETWORKS = {
    "tutti-small": ModelConfig(layers=2, phones=tuple(map(str, range(41)))),
    "ds2-1760": ModelConfig(name="ds2-1760", conv_channels=640, hidden=1760, layers=2, lookahead=20),
}
ROWS = (1, 64, 128)  # narrow tiles, wide ones, and all segments in one program
MOST_SHARED_BYTES = 75_776  # a third of a multiprocessor's 227 KB: three programs of a product are resident
NAMES = ("M", "K", "H", "BN", "READ", "WRITE")


def label(launch):
    """Return a kernel's name and the constants that distinguish its variants."""
    constants = dict(launch.constants)
    cases = [f"{name}={int(constants[name])}" for name in NAMES if constants.get(name)]
    return " ".join([launch.fn.__name__, *cases])


def step_launches(config, rows, monkeypatch):
    """Return the launches of a step of this many rows, with both launch options on."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.init, "orthogonal_", lambda weight: weight)  # takes seconds, and changes no launch
        network = Network(config).half()
    network.features.float()
    slabs = {name: torch.zeros(4, *shape, dtype=dtype) for name, (shape, dtype) in network.state_shapes().items()}
    choices = Launching(overlapped=True, ahead=True)
    step = TritonStep(network, slabs, largest_rows=rows, largest_steps=1, launching=choices)
    block = empty_block(config, rows, 1)
    with monkeypatch.context() as patch:
        return recorded(patch, lambda: step.enqueue(block, rows, 1))


def publishes_before_it_counts(code):
    """Check the order: store partial sums, barrier, fence, count, invalidate the cache, read."""
    (count,) = code.places("ATOMG")
    fence = max(code.places("MEMBAR.ALL.GPU"))
    barrier = max(place for place in code.places("BAR") if place < fence)
    dropped = min(place for place in code.places("CCTL.IVALL") if place > count)
    stored = [place for place in code.places("STG") if place < count]
    read = code.places("LDG.*STRONG.GPU")
    return max(stored) < barrier < fence < count < dropped < min(read)


def check(launch, code):
    """Check the rules for every kernel; return its figures for the file."""
    products = launch.fn.__name__.endswith(("spectrum_kernel", "product_kernel", "recurrent_kernel"))
    assert code.stack == 0, "spills"
    assert code.count("LDL|STL") == 0, "spills"
    assert code.registers <= 255
    assert code.shared_bytes <= MOST_SHARED_BYTES
    assert code.count("HGMMA|WGMMA") == 0, "another kind of tensor core instruction may give other bits"
    assert (code.count("HMMA.16816.F32") > 0) == products
    assert code.count("HMMA") == code.count("HMMA.16816.F32")
    if "weights" in launch.fn.arg_names:
        assert code.count("LDGSTS.E.BYPASS.128") > 0, "weights are loaded 16 bytes at a time, asynchronously"
    if "counters" in launch.fn.arg_names and not launch.fn.__name__.startswith("wide"):
        assert publishes_before_it_counts(code)
    if launch.fn.__name__ == "shift_kernel":
        loads, stores = code.places("LDG.*U16|LDG.*128"), code.places("STG")
        assert any(max(loads) < barrier < min(stores) for barrier in code.places("BAR"))
    overlapped = launch.fn.__name__ not in {"spectrum_kernel", "shift_kernel", "leave_kernel"}  # the first, and aside
    assert (code.count("ACQBULK") > 0) == overlapped
    return {
        "registers": code.registers,
        "shared_bytes": code.shared_bytes,
        "products": code.count("HMMA"),
        "asynchronous_copies": code.count("LDGSTS"),
    }


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_kernel_of_a_step_compiles_without_spills_to_the_figures_on_file(name, monkeypatch):
    """With the Triton version of the file the figures are equal; with another one only the rules are checked."""
    found = {}
    for rows in ROWS:
        for launch in step_launches(NETWORKS[name], rows, monkeypatch):
            key = label(launch)
            if key not in found:
                found[key] = check(launch, compiled(launch))
    on_file = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    if os.environ.get("WRITE_TRITON_LIMITS"):
        LIMITS.write_text(json.dumps({**on_file, "triton": triton.__version__, name: found}, indent=1) + "\n")
    elif triton.__version__ == on_file["triton"]:
        assert found == on_file[name]


def test_a_step_launches_four_kernels_per_layer_and_nine_more(monkeypatch):
    """Two frames per step: norm, product and two frames of recurrence per layer."""
    launches = step_launches(NETWORKS["tutti-small"], 1, monkeypatch)
    names = [launch.fn.__name__ for launch in launches]
    assert names == [
        "spectrum_kernel", "mel_kernel", "product_kernel", "product_kernel",
        *["norm_kernel", "product_kernel", "recurrent_kernel", "recurrent_kernel"] * 2,
        "lookahead_kernel", "shift_kernel", "leave_kernel", "product_kernel", "product_kernel",
    ]  # fmt: skip
