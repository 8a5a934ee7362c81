"""A language model's file that is overwritten or truncated while it is served: the process and its scores survive."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from model.lm.cache import read_cache
from model.lm.language_model import LanguageModel
path, damage = Path(sys.argv[1]), sys.argv[2]
model = LanguageModel.load(path)
before = model.score(["w7", "w8", "w9"]), [array.sum() for array in model.trie.arrays]
if damage == "cut":
    with path.open("r+b") as file:
        file.truncate(0)
elif damage == "overwritten":
    path.write_bytes(b"x" * path.stat().st_size)
else:
    other = path.with_name("other")
    other.write_bytes(b"other")
    other.replace(path)
assert before == (model.score(["w7", "w8", "w9"]), [array.sum() for array in model.trie.arrays])
print("alive")
"""


@pytest.mark.parametrize("damage", ["cut", "overwritten", "replaced"])
@pytest.mark.parametrize("name", ["served.lm", "served.arpa"])
def test_a_served_model_whose_file_is_replaced_keeps_its_scores(tmp_path, name, damage):
    words = [f"w{number}" for number in range(5_000)]  # many pages
    head = f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n-2\t<unk>\n-99\t<s>\n-1\t</s>\n"
    source = tmp_path / "served.arpa"
    source.write_text(head + "".join(f"-3\t{word}\n" for word in words) + "\n\\end\\\n")
    path = source
    if name.endswith(".lm"):
        from model.lm.language_model import LanguageModel

        path = tmp_path / name
        LanguageModel.load(source, cache_dirs=()).save(path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), damage], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
