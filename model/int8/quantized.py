"""The numbers of a quantised network: integer weights, static scales of the activations, the rest in float32.

A product takes unsigned 8-bit inputs with one scale and one zero point for the whole tensor, found once and kept. Its
sums are exact integers, so their order, the number of rows and the instruction set do not matter. Weights stay within
63: products of 255 and 63 in pairs fit in 16 bits, where the AVX2 instruction `vpmaddubsw` would saturate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.config import ModelConfig

LARGEST_WEIGHT = 63
LARGEST_INPUT = 255


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """y[o] = sum_i (q[i] - input_zero) * weight[o, i] * scale[o] * input_scale + bias[o].

    q[i] = clip(rint(x[i] / input_scale) + input_zero, 0, 255); weight (out, in) int8 within ±63, scale and bias (out,)
    float32.
    """

    weight: NDArray[np.int8]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    input_scale: float
    input_zero: int


@dataclass(frozen=True, slots=True)
class QuantizedNetwork:
    """Everything that the compiled step reads.

    `products`: conv0, conv1, gru0.input, gru0.recurrent, …, dense, head. `tensors` float32, by their names in the
    network's state: features.mean, features.scale, norms.0.weight, norms.0.bias, …, norm.weight, norm.bias,
    lookahead.weight.
    """

    config: ModelConfig
    products: Mapping[str, QuantizedProduct]
    tensors: Mapping[str, NDArray[np.float32]]
