"""Compile the machine code of an image for every kind of processor it may run on: `python -m model.prebuilt.image`.

A warm-up for the first kind runs on this machine and gives the types of all arguments. For the other kinds the same
functions are compiled for the same types, but not executed, because this machine may lack their instructions. The code
goes to `NUMBA_CACHE_DIR`; deploy/docker/start.sh selects among the kinds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model.machine.instructions import LEVELS, WITH_VNNI

ARM64 = ("generic", "")
TARGETS = {"x86_64": ((LEVELS[1], ""), WITH_VNNI), "aarch64": (ARM64,)}
"""By machine, the processor names and features in the form of numba's variables. The first one runs the warm-up."""


def compile_all(types: Path) -> int:
    """Compile every function in a file of `model.warm_up --types` for its types; return the number of signatures."""
    count = 0
    for module, name, signatures in pickle.loads(types.read_bytes()):  # noqa: S301 - of this program
        function = getattr(importlib.import_module(module), name)
        for signature in signatures:
            function.compile(signature)
            count += 1
    return count


def compile_for(target: tuple[str, str], module: str, *options: str) -> None:
    """Run a module of this package with numba's variables of one kind of processor. Raises: CalledProcessError."""
    name, features = target
    started = time.perf_counter()
    words = [sys.executable, "-m", module, *options]
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    subprocess.run(words, env=environment, check=True)  # noqa: S603 - of this package
    print(f"compiled for {name}{features} in {time.perf_counter() - started:.0f} s", flush=True)  # noqa: T201


def main() -> None:
    """Compile for all kinds of this architecture, or, in the processes that it starts, for one kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=Path, help="compile for these types alone, without running the code")
    asked = parser.parse_args()
    if asked.types is not None:
        print(f"{compile_all(asked.types)} functions")  # noqa: T201
        return
    machine = platform.machine()
    if machine not in TARGETS:
        sys.exit(f"no image for {machine}; there are images for {', '.join(TARGETS)}")
    first, *others = TARGETS[machine]
    with tempfile.TemporaryDirectory() as folder:
        types = Path(folder) / "types"
        compile_for(first, "model.warm_up", "--published", "--types", str(types))
        for target in others:
            compile_for(target, "model.prebuilt.image", "--types", str(types))


if __name__ == "__main__":
    main()
