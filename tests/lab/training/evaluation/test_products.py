"""Benchmark of matrix products: each one runs and is listed, and ours gives the exact integers."""

import numpy as np
import pytest

from model.machine.instructions import instruction_set
from tutti_asr_lab.training.evaluation import products

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")


def test_the_timed_product_gives_the_exact_integers():
    random = np.random.default_rng(1)
    rows = random.integers(0, 256, (3, products.WIDTH), dtype=np.uint8)
    weight = random.integers(-63, 64, (products.OUTPUTS, products.WIDTH)).astype(np.int8)
    sums = products.contenders(3)[f"here, {instruction_set()}"]()
    np.testing.assert_array_equal(sums, (rows.astype(np.int64) - 128) @ weight.T.astype(np.int64))


def test_the_table_has_one_line_per_product_and_one_column_per_number_of_rows(capsys, monkeypatch):
    monkeypatch.setattr(products, "ROUND_S", 0.0)
    monkeypatch.setattr(products, "ROUNDS", 1)
    products.main(["--rows", "1", "3"])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| rows | 1 | 3 |"
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert names[0] == f"here, {instruction_set()}"
    assert "fp32" in names
    assert all(len(row.split(" | ")) == 3 for row in rows)
