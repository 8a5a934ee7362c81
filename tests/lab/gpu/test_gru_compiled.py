"""The persistent kernels, of a recurrence in both directions and of a whole layer, compiled without a GPU.

For sm_90a, and the recurrence for sm_80 too, up to what the 108 multiprocessors of an A100 hold. Limits are in
`limits.json`, by kernel and hidden size; NVRTC takes 0.2 to 0.4 s for a recurrence, 1 s for a layer.
"""

import ctypes
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.needs import missing, need_package
from tutti_asr_lab.gpu import driver, layer
from tutti_asr_lab.gpu.driver import KernelError, compile_cubin
from tutti_asr_lab.gpu.layer import GROUP, layer_layout
from tutti_asr_lab.gpu.pack import MOST_BLOCKS, MOST_SHARED_BYTES, backward_layout_of, layout_of
from tutti_asr_lab.gpu.persistent import BACKWARD_SOURCE, POLL_DELAY, SOURCE, SPIN_LIMIT

LIMITS = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))
ARCH = "sm_90a"
BACKWARD = "persistent_gru_backward"
CASES = [(entry, int(hidden), ARCH) for entry in LIMITS for hidden in LIMITS[entry]]
CASES += [(entry, hidden, "sm_80") for entry in ("persistent_gru", BACKWARD) for hidden in (32, 416, 1024, 1536)]


@pytest.fixture(scope="module")
def tools():
    """Return the folder of cuobjdump and nvdisasm, which are part of Triton."""
    folder = Path(need_package("triton").__file__).parent / "backends" / "nvidia" / "bin"
    if not (folder / "nvdisasm").exists():
        missing("Triton without nvdisasm")
    return folder


def compiled(entry, hidden, arch=ARCH):
    try:
        driver.nvrtc()
    except KernelError as error:
        missing(str(error))
    if entry == "gru_layer":
        layout, shared_bytes = layer_layout(hidden)
        source, sizes = layer.SOURCE, layout.defines() | {"GROUP": GROUP}
    else:
        layout = backward_layout_of(hidden) if entry == BACKWARD else layout_of(hidden)
        source = BACKWARD_SOURCE if entry == BACKWARD else SOURCE
        sizes, shared_bytes = layout.defines(), layout.shared_bytes
    sizes |= {"SPIN_LIMIT": SPIN_LIMIT, "POLL_DELAY": POLL_DELAY}
    return compile_cubin(source, arch, tuple(sorted(sizes.items()))), layout, shared_bytes


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def resources(tools, cubin, entry):
    """Return registers, stack bytes and local bytes of a thread, and the kernel's instructions."""
    usage = output(tools / "cuobjdump", "-res-usage", cubin).split(f"Function {entry}:")[1]
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage).groups()
    code = output(tools / "nvdisasm", "-c", cubin).split(f".section\t.text.{entry},")[1].split("\t.section\t")[0]
    return [int(number) for number in numbers], code


@pytest.mark.parametrize(("entry", "hidden", "arch"), CASES)
def test_resources_and_instructions_are_those_of_the_limits(tools, tmp_path, entry, hidden, arch):
    code, layout, shared_bytes = compiled(entry, hidden, arch)
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(code)
    (registers, stack, local), code = resources(tools, cubin, entry)
    limits = LIMITS[entry][str(hidden)]
    found = {
        "blocks": layout.blocks,
        "shared_bytes": shared_bytes,
        "weight_loads": len(re.findall(r"LDG\.E\.NA\.128\.CONSTANT", code)),
        "weight_copies": len(re.findall(r"LDGSTS\.E\.BYPASS\.128", code)),
        "products": len(re.findall(r"HMMA\.16816\.F32(\.BF16)? ", code)),
    }
    assert found == {name: limits[name] for name in found}
    assert registers <= limits["most_registers"]
    assert (stack, local) == (0, 0)
    assert not re.search(r"\b(LDL|STL)\b", code)
    assert layout.blocks <= MOST_BLOCKS
    assert shared_bytes <= MOST_SHARED_BYTES
    if entry != "gru_layer":
        assert found["weight_loads"] == layout.register_fragments
        assert found["weight_copies"] == layout.fragments - layout.register_fragments


def test_states_of_other_blocks_are_loaded_16_bytes_at_a_time(tools, tmp_path):
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(compiled("persistent_gru", 1760)[0])
    code = output(tools / "nvdisasm", "-c", cubin)
    narrow = re.findall(r"LDG\.E\.STRONG\.GPU", code)
    wide = re.findall(r"LDG\.E\.128\.STRONG\.GPU", code)
    pairs = layout_of(1760).pairs
    assert len(wide) % pairs == 0
    assert len(wide) >= 3 * pairs  # the first time, during a product, and again if stale
    assert len(narrow) <= 8  # epochs and error word


def test_gradients_of_other_blocks_are_loaded_as_two_whole_words_and_stored_as_one(tools, tmp_path):
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(compiled(BACKWARD, 1760)[0])
    code = output(tools / "nvdisasm", "-c", cubin)
    loads = 4 * backward_layout_of(1760).pairs
    assert len(re.findall(r"LDG\.E\.128\.STRONG\.GPU", code)) == 3 * loads  # if stale, with one tile, during a product
    assert len(re.findall(r"STG?\.E\.64\.STRONG\.GPU", code)) == 1


def test_a_source_that_does_not_compile_is_reported_with_the_log(tmp_path):
    compiled("persistent_gru", 32)
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong() { undeclared(); }', encoding="utf-8")
    with pytest.raises(KernelError, match=r"wrong\.cu does not compile for sm_90a:\n.*undeclared"):
        compile_cubin(source, ARCH, ())


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(driver, "SONAMES", ("libnvrtc.so.none",))
    driver.nvrtc.cache_clear()
    try:
        with pytest.raises(KernelError, match="pip install nvidia-cuda-nvrtc"):
            driver.nvrtc()
    finally:
        driver.nvrtc.cache_clear()


def test_structures_have_the_sizes_of_the_driver_api():
    assert ctypes.sizeof(driver._Attribute) == 72
    assert ctypes.sizeof(driver._Config) == 56
