"""Code of the 8-bit step for 64-bit ARM: generated here, but not executed.

The code of the portable product is passed to LLVM's AArch64 target, as numba would do there.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.audio.speech import ROOT
from tests.support.processors import BASELINE, environment

PROCESS = r"""
import json, re
import numba
from llvmlite import binding
from model.int8 import step
from model.machine.instructions import instruction_set
from tests.support.networks.quantized_networks import random_slots

random_slots(capacity=1, largest=1).run([0])
anew = numba.njit(nogil=True)(step.step.py_func)  # code from the cache cannot be inspected
(signature,) = step.step.signatures
anew.compile(signature)
text = anew.inspect_llvm(signature)
declared = sorted(set(re.findall(r"^declare .*?@([\w.]+)\(", text, re.M)))

binding.initialize_all_targets()
binding.initialize_all_asmprinters()
triple = "aarch64-unknown-linux-gnu"
machine = binding.Target.from_triple(triple).create_target_machine(cpu="generic", opt=3)
text = re.sub("target triple = .*", f'target triple = "{triple}"', text)
text = re.sub("target datalayout = .*", f'target datalayout = "{machine.target_data}"', text)
module = binding.parse_assembly(text)
module.verify()
assembly = machine.emit_assembly(module)
print(json.dumps({
    "instructions": instruction_set(),
    "declared": declared,
    "elf_machine": int.from_bytes(machine.emit_object(module)[18:20], "little"),
    "fused": re.findall(r"\bfml[as]\w*|\bfn?m(?:add|sub)\b", assembly),
    "products": len(re.findall(r"\bfmul\b", assembly)),
    "roots": len(re.findall(r"\bfsqrt\b", assembly)),
    "multiplied_bytes": len(re.findall(r"\b[su]?ml[as]l2?\b|\bmul\b|\b[su]mull2?\b", assembly)),
}))
"""
EM_AARCH64 = 183  # ELF's number of the processor
OF_NUMBA = ("llvm.", "Py", "NRT_", "numba_")


def test_the_step_compiles_for_arm64_without_a_fused_product_or_a_library_of_mathematics() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        cwd=ROOT,
        env=environment(BASELINE) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["instructions"], found["elf_machine"]) == ("portable", EM_AARCH64)
    assert not [name for name in found["declared"] if name.startswith("llvm.x86")]
    assert not [name for name in found["declared"] if not name.startswith(OF_NUMBA)], "exp or log of a C library"
    assert found["fused"] == [], "a fused product rounds once instead of twice: other bits"
    assert min(found["products"], found["roots"], found["multiplied_bytes"]) > 0
