"""Weights of hama 1.7.0, a phone recognizer of another project, as the start of an attention network.

The wheel's metadata name the Apache licence 2.0, the repository's LICENSE file the MIT licence. The file of weights is
an archive: `HAMAPK`, version and kind (a byte each), count (uint32), then of each tensor its name, type (0 float32,
1 float16), shape, offset and length; the values follow, aligned to 16 bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention_config import AttentionConfig
from model.audio.mel import slaney_filters
from tutti_asr_lab.training.attention.network import AttentionNetwork
from tutti_asr_lab.training.wheels import open_wheel

WHEEL = "hama-1.7.0-py3-none-any.whl"
SHA256 = "be48d6379d288fc588ff9a5f609462b2fb81287dd84afaa2dfb1d283cb280c4d"
WEIGHTS, SYMBOLS = "hama/assets/asr_waveform.hama", "hama/assets/g2p_vocab.json"
BLANK = 190
FIRST_PRODUCT, PRODUCTS = 829, ("ffn1.fc1", "ffn1.fc2", "attn.in_proj", "attn.out_proj", "ffn2.fc1", "ffn2.fc2")
PRODUCT_OFFSETS = (0, 1, 2, 6, 7, 8)  # of their matrices, from a block's first one; the others are scores of attention
FIRST_CONVOLUTION = 804
SPELLED = {"ɡ": "g", "dʒ": "d͡ʒ", "tʃ": "t͡ʃ", "ɚ": "ɝ"}  # our phones that it writes otherwise
HEADER, ENTRY, SPAN = struct.Struct("<BBI"), struct.Struct("<BB"), struct.Struct("<QQ")
TYPES = {0: np.float32, 1: np.float16}

Arrays = Mapping[str, NDArray[np.float32]]


def read_wheel(path: Path) -> tuple[Arrays, list[str]]:
    """Return the float32 tensors by name, and the names of the outputs. Raises: TrainingError for another file."""
    with open_wheel(path, WHEEL, SHA256) as wheel:
        symbols = json.loads(wheel.read(SYMBOLS))["decoder"]
        return tensors(wheel.read(WEIGHTS)), [*symbols, "<wb>", "<blank>"]


def tensors(blob: bytes) -> Arrays:
    """Tensors of an archive of weights, in float32."""
    at = len(b"HAMAPK")
    *_, count = HEADER.unpack_from(blob, at)
    at += HEADER.size
    entries: list[tuple[str, int, tuple[int, ...], int]] = []
    for _ in range(count):
        (length,) = struct.unpack_from("<H", blob, at)
        name = blob[at + 2 : at + 2 + length].decode()
        at += 2 + length
        kind, axes = ENTRY.unpack_from(blob, at)
        shape = struct.unpack_from(f"<{axes}I", blob, at + ENTRY.size)
        at += ENTRY.size + 4 * axes
        entries.append((name, kind, shape, SPAN.unpack_from(blob, at)[0]))
        at += SPAN.size
    first = -(-at // 16) * 16
    return {
        name: np.frombuffer(blob, TYPES[kind], math.prod(shape), first + offset).reshape(shape).astype(np.float32)
        for name, kind, shape, offset in entries
    }


def initialize(network: AttentionNetwork, arrays: Arrays, symbols: Sequence[str]) -> None:
    """Copy the weights of `read_wheel` into a network of the same sizes whose feature statistics are set."""
    with torch.no_grad():
        _blocks(network, {name: torch.from_numpy(array) for name, array in arrays.items()})
        _stem(network, arrays)
        _head(network, arrays, symbols)


def _blocks(network: AttentionNetwork, given: Mapping[str, Tensor]) -> None:
    for number, block in enumerate(network.blocks):
        prefix = f"acoustic_model.model.blocks.{number}."
        first = FIRST_PRODUCT + 9 * number
        matrices = {
            name: given[f"onnx::MatMul_{first + offset}"].t()
            for name, offset in zip(PRODUCTS, PRODUCT_OFFSETS, strict=True)
        }
        values = {
            "feed1.norm": "ffn1.norm", "attention_norm": "attn_norm", "convolution_norm": "conv.norm",
            "feed2.norm": "ffn2.norm", "norm": "norm",
        }  # fmt: skip
        state = {f"{own}.{part}": given[f"{prefix}{name}.{part}"] for own, name in values.items()
                 for part in ("weight", "bias")}  # fmt: skip
        own_names = ("feed1.inner", "feed1.outer", "attention_in", "attention_out", "feed2.inner", "feed2.outer")
        for own, (name, matrix) in zip(own_names, matrices.items(), strict=True):
            bias = f"{name}_bias" if name.endswith("in_proj") else f"{name}.bias"
            state |= {f"{own}.weight": matrix, f"{own}.bias": given[prefix + bias]}
        for own, name in (("pointwise_in", "pointwise1"), ("pointwise_out", "pointwise2")):
            state[f"{own}.weight"] = given[f"{prefix}conv.{name}.weight"][:, :, 0]
            state[f"{own}.bias"] = given[f"{prefix}conv.{name}.bias"]
        state["depthwise.weight"] = given[f"onnx::Conv_{FIRST_CONVOLUTION + 3 * number}"]
        state["depthwise.bias"] = given[f"onnx::Conv_{FIRST_CONVOLUTION + 1 + 3 * number}"]
        block.load_state_dict(state)


def _stem(network: AttentionNetwork, arrays: Arrays) -> None:
    """Fold the difference between the two kinds of features into the first convolution.

    Both are logarithms of band energies of the same windows, with filters of other heights: white noise shows by how
    much they differ in each band.
    """
    weight, bias = arrays["onnx::Conv_801"].astype(np.float64), arrays["onnx::Conv_802"].astype(np.float64)
    offset = np.log(arrays["mel_fb"].sum(0, dtype=np.float64)) - np.log(_noise_energy(network.config))
    mean, scale = network.features.mean.double().numpy(), network.features.scale.double().numpy()
    network.stem.weight.copy_(torch.from_numpy(weight / scale[:, None]))
    cast(Tensor, network.stem.bias).copy_(torch.from_numpy(bias + (weight * (mean + offset)[:, None]).sum((1, 2))))


def _noise_energy(config: AttentionConfig) -> NDArray[np.float64]:
    energies: NDArray[np.float64] = slaney_filters(config).sum(0, dtype=np.float64)
    return energies


def _head(network: AttentionNetwork, arrays: Arrays, symbols: Sequence[str]) -> None:
    """Start each phone's output as that of the like phone, letters at zero."""
    config = network.config
    letters = len(config.vocabulary)
    rows = [BLANK, *(symbols.index(SPELLED.get(phone, phone)) for phone in config.phones)]
    weight, bias = arrays["acoustic_model.model.proj.weight"][:, :, 0], arrays["acoustic_model.model.proj.bias"]
    network.head.weight.zero_()
    network.head.bias.zero_()
    network.head.weight[letters:] = torch.from_numpy(weight[rows])
    network.head.bias[letters:] = torch.from_numpy(bias[rows])
    network.head.weight[0] = network.head.weight[letters]
    network.head.bias[0] = network.head.bias[letters]
