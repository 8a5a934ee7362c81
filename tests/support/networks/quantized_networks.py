"""Small quantized networks with random weights, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from model.int8.quantized import QuantizedNetwork
from model.int8.slots import Int8Slots, PackedNetwork
from model.torch_model import TorchModel
from tutti_asr_lab.training.quantization.quantize import quantize

PHONES = tuple("pbtdkgmnŋfvθðszʃʒhlɹjw")


@cache
def random_quantized(seed: int = 0, phones: tuple[str, ...] = ()) -> QuantizedNetwork:
    """Quantize a random network by noise."""
    random = np.random.default_rng(seed)
    recordings = [random.normal(0, 3_000, 16_000).astype(np.int16) for _ in range(3)]
    return quantize(TorchModel.random(seed, phones=phones).network, recordings)


def random_slots(
    seed: int = 0, phones: tuple[str, ...] = (), *, capacity: int = 40, largest: int = 40, **options: Any
) -> Int8Slots:
    """Return slots of a random quantized network."""
    return Int8Slots(PackedNetwork(random_quantized(seed, phones)), capacity=capacity, largest=largest, **options)
