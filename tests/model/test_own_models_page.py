"""The example of docs/own-models.md runs as it stands, and answers every step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-models.md"


def test_the_example_answers_every_step() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sum(int(rows) for rows in re.findall(r"^(\d+) rows in ", done.stdout, re.MULTILINE)) == 100
