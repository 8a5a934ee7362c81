"""The probe's kernels compile without a GPU and use the intended instructions."""

import re

import pytest

from tests.support.needs import need_package

need_package("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, compile  # noqa: A004, E402

from tutti_asr_lab.benchmarks.gpu.sections import probe_kernels as kernels  # noqa: E402
from tutti_asr_lab.benchmarks.gpu.sections.bits import DEPTH, EDGE, TILES  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)


def ptx(kernel, types, constants, **options):
    """Return the PTX of a kernel for pointers aligned to 16 bytes."""
    names = kernel.arg_names
    signature = types | dict.fromkeys(constants, "constexpr")
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in types if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, {name: signature[name] for name in names}, values, aligned)
    return compile(source, target=HOPPER, options=options).asm["ptx"]


def test_reads_load_16_bytes_at_once():
    code = ptx(kernels.read_all, {"source": "*i32", "sums": "*i32"}, {"LOOPS": 4, "BLOCK": 4096})
    assert "ld.global.v4" in code


def test_reading_one_buffer_bypasses_the_l1_cache():
    types = {"source": "*i32", "sums": "*i32", "times": "i32"}
    code = ptx(kernels.read_shared, types, {"BLOCKS": 8, "BLOCK": 2048})
    assert "ld.global.cg.v4" in code


def test_the_empty_kernel_accesses_no_memory():
    code = ptx(kernels.empty, {"_x": "*fp32"}, {})
    assert not re.search(r"\b[ls][dt]\.global", code)


@pytest.mark.parametrize("tile", [TILES[0], TILES[1], TILES[2], TILES[-1]])
def test_products_with_few_warps_use_mma_and_others_wgmma(tile):
    rows, columns, warps = tile
    sizes = {"N": EDGE, "K": DEPTH, "BM": rows, "BN": columns, "BK": 32}
    code = ptx(kernels.multiply, {"w": "*fp16", "x": "*fp16", "y": "*fp32"}, sizes, num_warps=warps, num_stages=2)
    found = set(re.findall(r"(?:wgmma\.mma_async|mma\.sync)[.\w:]*", code))
    expected = f"m64n{columns}k16" if warps >= 4 else "mma.sync.aligned.m16n8k16"
    assert len(found) == 1
    assert expected in found.pop()
