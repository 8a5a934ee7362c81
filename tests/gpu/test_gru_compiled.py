"""The persistent kernels, of a recurrence and of a whole layer, compiled for sm_90a without a GPU.

Limits are in `limits.json`, by kernel and hidden size; NVRTC takes 0.2 to 0.4 s for a recurrence, 1 s for a layer.
"""

import ctypes
import json
import re
import subprocess
from pathlib import Path

import pytest

from model.gpu.cuda import driver, layer
from model.gpu.cuda.driver import KernelError, compile_cubin
from model.gpu.cuda.layer import GROUP, layer_layout
from model.gpu.cuda.pack import MOST_BLOCKS, MOST_SHARED_BYTES, layout_of
from model.gpu.cuda.persistent import POLL_DELAY, SOURCE, SPIN_LIMIT
from tests.support.needs import missing, need_package

LIMITS = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))
ARCH = "sm_90a"


@pytest.fixture(scope="module")
def tools():
    """Return the folder of cuobjdump and nvdisasm, which are part of Triton."""
    folder = Path(need_package("triton").__file__).parent / "backends" / "nvidia" / "bin"
    if not (folder / "nvdisasm").exists():
        missing("Triton without nvdisasm")
    return folder


def compiled(entry, hidden):
    try:
        driver.nvrtc()
    except KernelError as error:
        missing(str(error))
    if entry == "gru_layer":
        layout, shared_bytes = layer_layout(hidden)
        source, sizes = layer.SOURCE, layout.defines() | {"GROUP": GROUP}
    else:
        layout = layout_of(hidden)
        source, sizes, shared_bytes = SOURCE, layout.defines(), layout.shared_bytes
    sizes |= {"SPIN_LIMIT": SPIN_LIMIT, "POLL_DELAY": POLL_DELAY}
    return compile_cubin(source, ARCH, tuple(sorted(sizes.items()))), layout, shared_bytes


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def resources(tools, cubin, entry):
    """Return registers, stack bytes and local bytes of a thread, and the kernel's instructions."""
    usage = output(tools / "cuobjdump", "-res-usage", cubin).split(f"Function {entry}:")[1]
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage).groups()
    code = output(tools / "nvdisasm", "-c", cubin).split(f".section\t.text.{entry},")[1].split("\t.section")[0]
    return [int(number) for number in numbers], code


@pytest.mark.parametrize(("entry", "hidden"), [(entry, int(hidden)) for entry in LIMITS for hidden in LIMITS[entry]])
def test_resources_and_instructions_are_those_of_the_limits(tools, tmp_path, entry, hidden):
    code, layout, shared_bytes = compiled(entry, hidden)
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(code)
    (registers, stack, local), code = resources(tools, cubin, entry)
    limits = LIMITS[entry][str(hidden)]
    found = {
        "blocks": layout.blocks,
        "shared_bytes": shared_bytes,
        "weight_loads": len(re.findall(r"LDG\.E\.NA\.128\.CONSTANT", code)),
        "weight_copies": len(re.findall(r"LDGSTS\.E\.BYPASS\.128", code)),
        "products": len(re.findall(r"HMMA\.16816\.F32 ", code)),
    }
    assert found == {name: limits[name] for name in found}
    assert registers <= limits["most_registers"]
    assert (stack, local) == (0, 0)
    assert not re.search(r"\b(LDL|STL)\b", code)
    assert layout.blocks <= MOST_BLOCKS
    assert shared_bytes <= MOST_SHARED_BYTES
    if entry == "persistent_gru":
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
