"""Histogram of weights by exponent: boundaries, shares that fp16 cannot hold, the files of a run."""

import csv

import pytest
import torch

from model.torch_network.checkpoint import load_network
from tests.support.training.tones import TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.curves.weight_exponents import FP16_LEAST, FP16_NORMAL, below, exponents
from tutti_asr_lab.training.acoustic.run import Places, train


def test_a_weight_counts_at_the_power_of_two_below_it_and_zeros_do_not_count():
    found = exponents([torch.tensor([[1.0, -1.5, 2.0], [0.0, 0.25, -0.49]]), torch.tensor([2.0**-130])])
    assert found == {-130: 1, -2: 2, 0: 2, 1: 1}


def test_the_limits_are_those_of_fp16():
    assert torch.finfo(torch.float16).smallest_normal == 2.0**FP16_NORMAL
    assert torch.tensor(2.0**FP16_LEAST).half() > 0
    assert torch.tensor(2.0 ** (FP16_LEAST - 1)).half() == 0
    assert below({FP16_LEAST - 1: 1, FP16_NORMAL - 1: 2, FP16_NORMAL: 5}, FP16_NORMAL) == pytest.approx(3 / 8)


def test_a_run_writes_the_histogram_of_the_weights_that_it_saves(tmp_path):
    folder = write_tones(tmp_path)
    out = folder / "tiny.safetensors"
    places = Places([folder / "tones.jsonl"], [], [], out, folder / "cache")
    train(TINY, recipe(updates=2), places, processes=1, device="cpu", announce=lambda _: None)
    with (folder / "tiny.weights.csv").open() as file:
        rows = {int(row["exponent"]): int(row["weights"]) for row in csv.DictReader(file)}
    network, _ = load_network(out)
    assert rows == exponents(network.parameters())
