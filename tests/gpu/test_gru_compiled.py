"""The persistent GRU kernel compiled for sm_90a without a GPU: registers, spills, shared memory, instructions.

Limits lie in `limits.json`, by hidden size; a size takes NVRTC 0.2 to 0.4 s.
"""

import ctypes
import json
import re
import subprocess
from pathlib import Path

import pytest
from needs import missing, need_package

from model.gpu import driver
from model.gpu.driver import KernelError, compile_cubin
from model.gpu.pack import MOST_BLOCKS, MOST_SHARED_BYTES, layout_of
from model.gpu.persistent import POLL_DELAY, SOURCE, SPIN_LIMIT

LIMITS = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))["persistent_gru"]
ARCH = "sm_90a"


@pytest.fixture(scope="module")
def tools():
    """Folder of cuobjdump and nvdisasm, which come with Triton."""
    folder = Path(need_package("triton").__file__).parent / "backends" / "nvidia" / "bin"
    if not (folder / "nvdisasm").exists():
        missing("Triton without nvdisasm")
    return folder


def compiled(hidden):
    try:
        driver.nvrtc()
    except KernelError as error:
        missing(str(error))
    return compile_cubin(
        SOURCE,
        ARCH,
        tuple(sorted((layout_of(hidden).defines() | {"SPIN_LIMIT": SPIN_LIMIT, "POLL_DELAY": POLL_DELAY}).items())),
    )


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("hidden", [int(size) for size in LIMITS])
def test_resources_and_instructions_are_those_of_the_limits(tools, tmp_path, hidden):
    layout, limits = layout_of(hidden), LIMITS[str(hidden)]
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(compiled(hidden))
    usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", output(tools / "cuobjdump", "-res-usage", cubin)))
    code = output(tools / "nvdisasm", "-c", cubin)
    found = {
        "blocks": layout.blocks,
        "shared_bytes": layout.shared_bytes,
        "register_fragments": len(re.findall(r"LDG\.E\.NA\.128\.CONSTANT", code)),
        "shared_fragments": len(re.findall(r"LDGSTS\.E\.BYPASS\.128", code)),
        "products": len(re.findall(r"HMMA\.16816\.F32 ", code)),
    }
    assert found == {name: limits[name] for name in found}
    assert int(usage["REG"]) <= limits["most_registers"]
    assert (int(usage["STACK"]), int(usage["LOCAL"])) == (0, 0)
    assert not re.search(r"\b(LDL|STL)\b", code)
    assert found["blocks"] <= MOST_BLOCKS
    assert found["shared_bytes"] <= MOST_SHARED_BYTES
    assert found["register_fragments"] + found["shared_fragments"] == layout.fragments


def test_states_of_other_blocks_are_loaded_16_bytes_at_a_time(tools, tmp_path):
    cubin = tmp_path / "gru.cubin"
    cubin.write_bytes(compiled(1760))
    code = output(tools / "nvdisasm", "-c", cubin)
    narrow = re.findall(r"LDG\.E\.STRONG\.GPU", code)
    wide = re.findall(r"LDG\.E\.128\.STRONG\.GPU", code)
    pairs = layout_of(1760).pairs
    assert len(wide) % pairs == 0
    assert len(wide) >= 3 * pairs  # the first time, beside a product, and again where stale
    assert len(narrow) <= 8  # epochs and error word


def test_a_source_that_does_not_compile_is_reported_with_the_log(tmp_path):
    compiled(32)
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong() { undeclared(); }', encoding="utf-8")
    with pytest.raises(KernelError, match=r"wrong\.cu does not compile for sm_90a:\n.*undeclared"):
        compile_cubin(source, ARCH, ())


def test_a_machine_without_nvrtc_is_told_what_to_install(monkeypatch):
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
