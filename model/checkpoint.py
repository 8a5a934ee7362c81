"""Checkpoints on disk: `NAME.safetensors` with the weights, `NAME.json` with the configuration beside it.

A checkpoint is quantised if the weights of its products are 8-bit integers. Beside `MODULE.weight` int8 it then holds
`MODULE.weight_scale` (out,) float32, `MODULE.input_scale` () float32 and `MODULE.input_zero` () uint8.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from model.config import MACRO_LANGUAGES, SHIPPED_WEIGHTS, ModelConfig, shipped_named
from model.errors import CheckpointError
from model.int8.quantized import LARGEST_WEIGHT, QuantizedNetwork, QuantizedProduct
from model.torch_network.network import Network

WEIGHTS = SHIPPED_WEIGHTS
SHIPPED = WEIGHTS / "tutti-small.safetensors"
SHIPPED_BY_LANGUAGE = {"en": SHIPPED, "zh": WEIGHTS / "tutti-mandarin.safetensors"}
SHIPPED_MODELS = (SHIPPED, WEIGHTS / "tutti-medium.safetensors", SHIPPED_BY_LANGUAGE["zh"])


def shipped_for(language: str) -> Path:
    """The shipped model of a language, by its tag: `zh-CN` has that of `zh`. Raises: CheckpointError."""
    first = language.replace("_", "-").partition("-")[0].lower()
    path = SHIPPED_BY_LANGUAGE.get(MACRO_LANGUAGES.get(first, first))
    if path is None:
        there = ", ".join(SHIPPED_BY_LANGUAGE)
        raise CheckpointError(
            f"no model of the language {language!r} is shipped; there is {there}. --model takes another"
        )
    return path


def named(path: Path) -> Path:
    """The file that a path stands for: the path itself, or a shipped model's if it is the name of one and no file."""
    return path if path.exists() else shipped_named(f"{path}") or path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, rename, flush the folder: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, outlives a loss of power
    finally:
        os.close(folder)


def products_of(config: ModelConfig) -> dict[str, str]:
    """The network's products: the name in `QuantizedNetwork.products`, and that of the linear module."""
    layers = {f"gru{i}.{side}": f"grus.{i}.{side}" for i in range(config.layers) for side in ("input", "recurrent")}
    return {"conv0": "conv0.product", "conv1": "conv1.product", **layers, "dense": "dense", "head": "head"}


def save(network: Network, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write weights and configuration. `dtype` is how the weights are stored; features' statistics stay float32."""
    tensors = {
        name: (t if name.startswith("features.") else t.to(dtype)).contiguous().cpu()
        for name, t in network.state_dict().items()
    }
    _write(path, network.config, tensors)


def save_quantized(network: QuantizedNetwork, path: Path) -> None:
    """Write integers, scales, the float32 tensors and the configuration."""
    tensors = {name: torch.from_numpy(tensor) for name, tensor in network.tensors.items()}
    for name, module in products_of(network.config).items():
        product = network.products[name]
        tensors |= {
            f"{module}.weight": torch.from_numpy(product.weight),
            f"{module}.weight_scale": torch.from_numpy(product.scale),
            f"{module}.bias": torch.from_numpy(product.bias),
            f"{module}.input_scale": torch.tensor(product.input_scale, dtype=torch.float32),
            f"{module}.input_zero": torch.tensor(product.input_zero, dtype=torch.uint8),
        }
    _write(path, network.config, {name: tensor.contiguous() for name, tensor in tensors.items()})


def load(path: Path) -> tuple[Network, str]:
    """Read a checkpoint. Returns the network in float32, integers multiplied by their scales, and its file's sha256.

    Raises: CheckpointError naming the file, what is wrong with it, and what to do.
    """
    config, tensors, digest = _read(path)
    network = Network(config)
    try:
        if is_quantized(tensors, config):
            tensors = dequantized(_numbers(config, tensors))
        network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()})
    except (KeyError, ValueError, RuntimeError) as error:
        raise _does_not_fit(path, error) from error
    return network.eval(), digest


def load_quantized(path: Path) -> tuple[QuantizedNetwork | None, str]:
    """Read the integers and scales of a checkpoint, None if it has none, and its file's sha256.

    Raises: CheckpointError naming the file, what is wrong with it, and what to do.
    """
    config, tensors, digest = _read(path)
    if not is_quantized(tensors, config):
        return None, digest
    try:
        return _numbers(config, tensors), digest
    except (KeyError, ValueError, RuntimeError) as error:
        raise _does_not_fit(path, error) from error


def is_quantized(tensors: dict[str, Tensor], config: ModelConfig) -> bool:
    """Whether the products' weights are integers."""
    weights = [tensors.get(f"{module}.weight") for module in products_of(config).values()]
    return any(weight is not None and weight.dtype == torch.int8 for weight in weights)


def dequantized(network: QuantizedNetwork) -> dict[str, Tensor]:
    """The state of a network in float32 that has the values of the integers as weights."""
    tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in network.tensors.items()}
    for name, module in products_of(network.config).items():
        product = network.products[name]
        tensors[f"{module}.weight"] = torch.from_numpy(product.weight.astype(np.float32) * product.scale[:, None])
        tensors[f"{module}.bias"] = torch.from_numpy(product.bias.copy())
    return tensors


def _write(path: Path, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
    described = json.dumps(config.to_dict(), indent=1, ensure_ascii=False)
    write_atomically(path.with_suffix(".json"), described.encode() + b"\n")
    write_atomically(path, save_tensors(tensors))


def outline(path: Path) -> tuple[ModelConfig, str]:
    """Read a checkpoint's configuration, and its file's sha256; no weights. Raises: CheckpointError."""
    config, blob = _files(path)
    return config, hashlib.sha256(blob).hexdigest()


def _read(path: Path) -> tuple[ModelConfig, dict[str, Tensor], str]:
    config, blob = _files(path)
    try:
        return config, load_tensors(blob), hashlib.sha256(blob).hexdigest()
    except Exception as error:  # safetensors raises its own untyped error
        raise _does_not_fit(path, error) from error


def _files(path: Path) -> tuple[ModelConfig, bytes]:
    try:
        blob = path.read_bytes()
        return ModelConfig.from_dict(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))), blob
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}; `--model` takes a .safetensors file "
            "that has its .json beside it"
        ) from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path.with_suffix('.json')} is not a model configuration: {error}") from error


def _does_not_fit(path: Path, error: Exception) -> CheckpointError:
    reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(f"{path} does not hold the weights its configuration describes: {reason}")


def _numbers(config: ModelConfig, tensors: dict[str, Tensor]) -> QuantizedNetwork:
    """Raises: KeyError, ValueError or RuntimeError for tensors that are missing or have other shapes or values."""
    left = dict(tensors)
    expected = Network(config).state_dict()
    products: dict[str, QuantizedProduct] = {}
    for name, module in products_of(config).items():
        weight, bias = left.pop(f"{module}.weight"), left.pop(f"{module}.bias")
        scale = left.pop(f"{module}.weight_scale")
        if weight.dtype != torch.int8 or int(weight.to(torch.int16).abs().max()) > LARGEST_WEIGHT:
            raise ValueError(f"{module}.weight is not of 8-bit integers within ±{LARGEST_WEIGHT}")
        wanted = expected.pop(f"{module}.weight").shape
        if weight.shape != wanted or {bias.shape, scale.shape} != {wanted[:1]}:
            raise ValueError(f"{module} has the shape {tuple(weight.shape)}, not {tuple(wanted)}")
        del expected[f"{module}.bias"]
        input_scale, input_zero = left.pop(f"{module}.input_scale"), left.pop(f"{module}.input_zero")
        products[name] = QuantizedProduct(
            weight=weight.numpy(),
            scale=scale.to(torch.float32).numpy(),
            bias=bias.to(torch.float32).numpy(),
            input_scale=float(input_scale),
            input_zero=int(input_zero),
        )
    if {name: t.shape for name, t in left.items()} != {name: t.shape for name, t in expected.items()}:
        raise ValueError(f"it has {', '.join(sorted(left))} and should have {', '.join(sorted(expected))}")
    return QuantizedNetwork(config, products, {name: t.to(torch.float32).numpy() for name, t in left.items()})
