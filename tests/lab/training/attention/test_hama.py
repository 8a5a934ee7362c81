"""Weights of the phone recognizer that the attention network starts from: the archive's format, and the features."""

from __future__ import annotations

import struct

import numpy as np
import torch

from model.attention_config import AttentionConfig
from model.audio.mel import slaney_filters
from tutti_asr_lab.training.attention.hama import BLANK, initialize, tensors
from tutti_asr_lab.training.attention.network import AttentionNetwork

CONFIG = AttentionConfig(phones=("ɡ", "h"))
SYMBOLS = ["a", "g", "h", *map(str, range(BLANK - 3)), "<blank>"]


def arrays(seed=1):
    """Return random weights under the names of the archive."""
    random = np.random.default_rng(seed)
    width, inner = CONFIG.width, CONFIG.feed_forward
    found = {
        "mel_fb": np.abs(random.normal(size=(201, 80))),
        "onnx::Conv_801": random.normal(size=(width, 80, 3)),
        "onnx::Conv_802": random.normal(size=width),
        "acoustic_model.model.proj.weight": random.normal(size=(191, width, 1)),
        "acoustic_model.model.proj.bias": random.normal(size=191),
    }
    for block in range(CONFIG.blocks):
        prefix = f"acoustic_model.model.blocks.{block}."
        for norm in ("ffn1.norm", "attn_norm", "conv.norm", "ffn2.norm", "norm"):
            found |= {f"{prefix}{norm}.{part}": random.normal(size=width) for part in ("weight", "bias")}
        shapes = ((width, inner), (inner, width), (width, 3 * width), (width, width), (width, inner), (inner, width))
        names = (
            "ffn1.fc1.bias",
            "ffn1.fc2.bias",
            "attn.in_proj_bias",
            "attn.out_proj.bias",
            "ffn2.fc1.bias",
            "ffn2.fc2.bias",
        )
        for offset, shape, name in zip((0, 1, 2, 6, 7, 8), shapes, names, strict=True):
            found[f"onnx::MatMul_{829 + 9 * block + offset}"] = random.normal(size=shape)
            found[prefix + name] = random.normal(size=shape[1])
        for name, outputs in (("pointwise1", 2 * width), ("pointwise2", width)):
            found[f"{prefix}conv.{name}.weight"] = random.normal(size=(outputs, width, 1))
            found[f"{prefix}conv.{name}.bias"] = random.normal(size=outputs)
        found[f"onnx::Conv_{804 + 3 * block}"] = random.normal(size=(width, 1, 31))
        found[f"onnx::Conv_{805 + 3 * block}"] = random.normal(size=width)
    return {name: array.astype(np.float32) for name, array in found.items()}


def test_an_archive_is_read_in_both_types():
    """Offsets count from the first multiple of 16 after the entries."""
    one, other = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0.5, -2.0], np.float16)
    entries = b""
    for name, kind, shape, offset, size in (("one", 0, (2, 3), 0, 24), ("other", 1, (2,), 24, 4)):
        entries += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BB", kind, len(shape))
        entries += struct.pack(f"<{len(shape)}I", *shape) + struct.pack("<QQ", offset, size)
    head = b"HAMAPK" + struct.pack("<BBI", 1, 2, 2) + entries
    blob = head + bytes(-len(head) % 16) + one.tobytes() + other.tobytes()
    found = tensors(blob)
    assert {name: array.tolist() for name, array in found.items()} == {"one": one.tolist(), "other": [0.5, -2.0]}
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


def test_the_stem_is_the_same_function_of_noise():
    """Its features of white noise are ours and the difference between the filters' heights."""
    given, network = arrays(), AttentionNetwork(CONFIG)
    random = np.random.default_rng(2)
    network.features.mean.copy_(torch.from_numpy(random.normal(size=80)))
    network.features.scale.copy_(torch.from_numpy(random.uniform(0.2, 2, 80)))
    initialize(network, given, SYMBOLS)
    ours = random.normal(-4, 2, (80, 3))  # logarithms of band energies, not normalized
    theirs = ours + np.log(given["mel_fb"].sum(0) / slaney_filters(CONFIG).sum(0))[:, None]
    expected = (given["onnx::Conv_801"] * theirs).sum((1, 2)) + given["onnx::Conv_802"]
    normalized = (ours - network.features.mean.numpy()[:, None]) * network.features.scale.numpy()[:, None]
    outputs = network.stem(torch.from_numpy(normalized[None]).float())[0, :, 0].detach().numpy()
    assert np.abs(outputs - expected).max() < 1e-3


def test_products_are_transposed_and_heads_take_the_rows_of_like_phones():
    """Phones that have another name there are found, letters start at zero but for the blank."""
    given, network = arrays(), AttentionNetwork(CONFIG)
    initialize(network, given, SYMBOLS)
    for block in range(CONFIG.blocks):
        inner = network.blocks[block].feed1.inner.weight.detach().numpy()
        assert (inner == given[f"onnx::MatMul_{829 + 9 * block}"].T).all()
        taps = network.blocks[block].depthwise.weight.detach().numpy()
        assert (taps == given[f"onnx::Conv_{804 + 3 * block}"]).all()
    rows, theirs = network.head.weight.detach().numpy(), given["acoustic_model.model.proj.weight"][:, :, 0]
    letters = len(CONFIG.vocabulary)
    assert (rows[letters:] == theirs[[BLANK, 1, 2]]).all()
    assert (rows[0] == theirs[BLANK]).all()
    assert not rows[1:letters].any()
