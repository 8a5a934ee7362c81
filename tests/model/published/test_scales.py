"""Scales of products in 8-bit integers: weights within ±63, and the file of scales."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model.errors import PublishedModelError
from model.published.scales import FILE, Scale, Scales, quantized_weights

INPUTS, OUTPUTS = 64, 48


def test_weights_are_within_63_and_their_columns_have_scales_of_their_own() -> None:
    weight = np.random.default_rng(1).standard_normal((INPUTS, OUTPUTS)).astype(np.float32) * np.arange(1, OUTPUTS + 1)
    rounded, steps = quantized_weights(weight.astype(np.float32))
    assert np.abs(rounded).max() == 63
    assert (np.abs(rounded).max(axis=0) == 63).all()
    assert np.abs(rounded * steps - weight).max(axis=0) == pytest.approx(steps / 2, rel=0.3)


def test_a_scale_contains_zero_exactly() -> None:
    for low, high in ((0.5, 2.0), (-2.0, -0.5), (-1.0, 3.0), (0.0, 0.0)):
        scale = Scale.of(low, high)
        assert scale.bytes_of(np.zeros(1, np.float32))[0] == scale.zero


def test_scales_are_read_as_written_and_belong_to_files(tmp_path):
    scales = Scales("files", {"product": Scale.of(-1, 1)}, {"product": "weights"}, ("other",), {"wer_to_floats": 0.01})
    scales.write(tmp_path)
    assert Scales.read(tmp_path) == scales
    assert Scales.read(tmp_path / "none") is None
    assert scales.by_weights == {"weights": Scale.of(-1, 1)}
    scales.check("files")
    with pytest.raises(PublishedModelError, match="written for other files"):
        scales.check("others")


def test_each_number_of_the_scales_changes_the_digest():
    made = [
        Scales(files, {"product": scale}, {"product": weights}).digest
        for files in ("a", "b")
        for scale in (Scale.of(-1, 1), Scale.of(-1, 2), Scale(Scale.of(-1, 1).step, 3))
        for weights in ("x", "y")
    ]
    assert len(set(made)) == 12


@pytest.mark.parametrize("damage", ["{", "[]", '{"version": 2}', '{"version": 2, "products": {"a": 1}}'])
def test_a_damaged_file_of_scales_is_named_with_what_to_do(damage, tmp_path):
    (tmp_path / FILE).write_text(damage)
    with pytest.raises(PublishedModelError, match=rf"{FILE} cannot be read .* run `tutti quantize` again"):
        Scales.read(tmp_path)


def test_scales_of_another_version_are_refused(tmp_path):
    path = Scales("files", {}, {}).write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    with pytest.raises(PublishedModelError, match="has version 9, this program reads 2"):
        Scales.read(tmp_path)
