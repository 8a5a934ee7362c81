"""The Triton kernels in the interpreter: one process per file, because Triton decides at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import need_package

FOLDER = Path(__file__).parent / "interpreted"


# A step takes 100 s on a processor with AVX2 only, while other tests run.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_every_interpreted_test_passes(name):
    """Run the tests of one file under interpreted/."""
    need_package("triton")
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-q", os.fspath(FOLDER / name)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=FOLDER.parents[2], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
