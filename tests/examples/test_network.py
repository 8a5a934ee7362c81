"""Networks of the examples: products whose rows do not depend on their batch, cells as in torch, weights kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from examples import network
from examples.network import Product, cached, gru, lstm, quantized


def test_a_row_of_a_product_has_the_same_bits_in_any_batch() -> None:
    dice = np.random.default_rng(1)
    product = Product.of(dice.normal(size=(300, 500)).astype(np.float32), np.zeros(300, np.float32))
    rows = quantized(dice.uniform(-1, 1, (70, 500)).astype(np.float32))
    whole = product(rows)
    for size in (1, 2, 3, 5, 8, 16, 33):
        for begin in range(0, len(rows) - size, size):
            assert product(rows[begin : begin + size]).tobytes() == whole[begin : begin + size].tobytes()


def test_a_product_is_close_to_that_of_the_floats() -> None:
    dice = np.random.default_rng(2)
    weights, bias = dice.normal(size=(40, 100)).astype(np.float32), dice.normal(size=40).astype(np.float32)
    rows = dice.uniform(-1, 1, (9, 100)).astype(np.float32)
    found = Product.of(weights, bias)(quantized(rows))
    assert np.abs(found - (rows @ weights.T + bias)).max() < 0.2  # of sums of about 6


def test_zero_sums_have_one_sign() -> None:
    product = Product(np.zeros((1, 2)), np.ones(1), np.array([-0.0]))
    assert not np.signbit(product(np.array([[-0.0, -1.0]], np.float32))).any()


def test_sums_that_float32_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="can reach 16777216, not below 16777216: use fewer inputs"):
        Product(np.full((1, 1024), 128), np.ones(1), np.zeros(1))
    Product(np.full((1, 1023), 128), np.ones(1), np.zeros(1))


def test_cells_are_those_of_torch() -> None:
    torch.manual_seed(3)
    x, hidden, cell = torch.rand(4, 6), torch.rand(4, 5), torch.rand(4, 5)
    with torch.no_grad():
        ours = torch.nn.GRUCell(6, 5)
        sums = (x @ ours.weight_ih.T + ours.bias_ih).numpy(), (hidden @ ours.weight_hh.T + ours.bias_hh).numpy()
        np.testing.assert_allclose(gru(*sums, hidden.numpy()), ours(x, hidden).numpy(), atol=1e-6)
        long = torch.nn.LSTMCell(6, 5)
        gates = x @ long.weight_ih.T + long.bias_ih + hidden @ long.weight_hh.T + long.bias_hh
        for found, wanted in zip(lstm(gates.numpy(), cell.numpy()), long(x, (hidden, cell)), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_weights_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "CACHE", tmp_path / "new")
    runs: list[int] = []

    def train() -> dict[str, np.ndarray]:
        runs.append(1)
        return {"weights": np.arange(3)}

    assert [cached("toy", train)["weights"].tolist() for _ in range(2)] == [[0, 1, 2]] * 2
    assert runs == [1]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["toy.safetensors"]
