"""Checkpoints on disk: `NAME.safetensors` with the weights, and `NAME.json` with the configuration next to it.

A checkpoint is quantized if the weights of its products are 8-bit integers. In addition to `MODULE.weight` int8 it has
`MODULE.weight_scale` (out,) float32, `MODULE.input_scale` () float32 and `MODULE.input_zero` () uint8. Those are read
here, without torch; `model.torch_network.checkpoint` reads and writes the weights of a network in torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as encoded

from model.attention_config import AttentionConfig, OwnConfig, own_config_of
from model.config import MACRO_LANGUAGES, PAIRS, SHIPPED_LANGUAGES, SHIPPED_WEIGHTS, ModelConfig, shipped_named
from model.errors import CheckpointError
from model.int8.quantized import LARGEST_WEIGHT, QuantizedNetwork, QuantizedProduct

WEIGHTS = SHIPPED_WEIGHTS
SHIPPED_MODELS = tuple(WEIGHTS / f"{name}.safetensors" for name in SHIPPED_LANGUAGES)
SHIPPED = SHIPPED_MODELS[0]
"""The default model."""
GRU = WEIGHTS / "tutti-gru.safetensors"
"""The English GRU network, which computes in floats, too."""
SHIPPED_BY_LANGUAGE = {SHIPPED_LANGUAGES[path.stem]: path for path in reversed(SHIPPED_MODELS)}
WEIGHTS_OF = "weights"
"""Key in a checkpoint's JSON file: name of another checkpoint, whose tensors it has, and whose settings if it has none.

So one file of weights serves several forms of steps."""
GRU_SIDES = ("input", "recurrent")  # its products
Arrays = Mapping[str, NDArray[Any]]

WHAT_MODELS_ARE = (
    "a model is a file NAME.safetensors with NAME.json next to it, a folder with .onnx graphs and tokens.txt, "
    f"or the name of a shipped one: {', '.join(path.stem.removeprefix('tutti-') for path in SHIPPED_MODELS)}"
)


def shipped_for(language: str) -> Path:
    """Return the shipped model of a language tag; `zh-CN` uses that of `zh`. Raises: CheckpointError."""
    first = language.replace("_", "-").partition("-")[0].lower()
    path = SHIPPED_BY_LANGUAGE.get(MACRO_LANGUAGES.get(first, first))
    if path is None:
        there = ", ".join(sorted(SHIPPED_BY_LANGUAGE))
        raise CheckpointError(
            f"no model of the language {language!r} is shipped; there is {there}. --model takes another"
        )
    return path


def named(path: Path) -> Path:
    """Return the path itself, or the file of the shipped model with this name if there is no such file."""
    return path if path.exists() else shipped_named(f"{path}") or path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file, flush it, rename it, flush the folder: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the new name survive a power failure
    finally:
        os.close(folder)


def products_of(config: ModelConfig) -> dict[str, str]:
    """Return the products of a network: name in `QuantizedNetwork.products` -> name of the linear module."""
    layers = {f"gru{i}.{side}": f"grus.{i}.{side}" for i in range(config.layers) for side in GRU_SIDES}
    return {"conv0": "conv0.product", "conv1": "conv1.product", **layers, "dense": "dense", "head": "head"}


def save_quantized(network: QuantizedNetwork, path: Path) -> None:
    """Write integers, scales, the float32 tensors and the configuration."""
    arrays: dict[str, NDArray[Any]] = dict(network.tensors)
    for name, module in products_of(network.config).items():
        arrays |= product_arrays(module, network.products[name])
    write(path, network.config, encoded({name: np.asarray(array, order="C") for name, array in arrays.items()}))


def product_arrays(module: str, product: QuantizedProduct) -> dict[str, NDArray[Any]]:
    """Return the tensors of a product, by their names in a checkpoint."""
    return {
        f"{module}.weight": product.weight,
        f"{module}.weight_scale": product.scale,
        f"{module}.bias": product.bias,
        f"{module}.input_scale": np.array(product.input_scale, np.float32),
        f"{module}.input_zero": np.array(product.input_zero, np.uint8),
    }


def load_quantized(path: Path) -> tuple[QuantizedNetwork | None, str]:
    """Read the integers and scales of a checkpoint, None if it has none, and the SHA-256 of its file.

    Raises: CheckpointError naming the file, the error, and what to do.
    """
    config, blob = read_recurrent(path)
    try:
        return quantized_of(config, blob), digest_of(blob)
    except Exception as error:  # safetensors raises an untyped error of its own
        raise does_not_fit(path, error) from error


def quantized_of(config: ModelConfig, blob: bytes) -> QuantizedNetwork | None:
    """Return the integers and scales in a file's bytes, None if it has none.

    Raises: SafetensorError for another file format, KeyError or ValueError for tensors that do not fit `config`.
    """
    weights = {f"{module}.weight" for module in products_of(config).values()}
    if any(name in weights and stored["dtype"] == "I8" for name, stored in deserialize(blob)):  # type: ignore[no-untyped-call]
        return _numbers(config, load_arrays(blob))
    return None


def digest_of(blob: bytes, config: OwnConfig | None = None) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes, with the form of a network that has another one's tensors."""
    form = f"{config.form}" if isinstance(config, AttentionConfig) and config.weights else ""
    return hashlib.sha256(blob + form.encode()).hexdigest()


def dequantized(network: QuantizedNetwork) -> dict[str, NDArray[np.float32]]:
    """Return the float32 state of a network with the values of the integers as weights."""
    arrays = dict(network.tensors)
    for name, module in products_of(network.config).items():
        product = network.products[name]
        arrays[f"{module}.weight"] = product.weight.astype(np.float32) * product.scale[:, None]
        arrays[f"{module}.bias"] = product.bias
    return arrays


def outline(path: Path) -> tuple[OwnConfig, str]:
    """Read a checkpoint's configuration and the SHA-256 of its file, without weights. Raises: CheckpointError."""
    config, blob = read(path)
    return config, digest_of(blob, config)


def write(path: Path, config: OwnConfig, blob: bytes) -> None:
    """Write a checkpoint: its configuration, and its tensors in safetensors format."""
    described = json.dumps(config.to_dict(), indent=1, ensure_ascii=False)
    write_atomically(path.with_suffix(".json"), described.encode() + b"\n")
    write_atomically(path, blob)


def read(path: Path) -> tuple[OwnConfig, bytes]:
    """Return a checkpoint's configuration and its tensors as stored. Raises: CheckpointError."""
    config = read_config(path)
    try:
        return config, weights_file(path).read_bytes()
    except OSError as error:
        raise _cannot_read(error) from error


def read_recurrent(path: Path) -> tuple[ModelConfig, bytes]:
    """As `read`, for a network of the Deep Speech 2 line. Raises: CheckpointError, also for another one."""
    config, blob = read(path)
    if not isinstance(config, ModelConfig):
        raise CheckpointError(f"{path} is an attention network, in 8 bits alone: use --precision int8 or a GRU network")
    return config, blob


def read_config(path: Path) -> OwnConfig:
    """Return a checkpoint's configuration; its tensors are not read. Raises: CheckpointError."""
    values = _described(path)
    try:
        if WEIGHTS_OF in values:
            values = _described(_weights_of(path, values)) | values
        return own_config_of(values)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path.with_suffix('.json')} is not a model configuration: {error}") from error


def _described(path: Path) -> dict[str, Any]:
    """The JSON object next to a checkpoint. Raises: CheckpointError."""
    description = path.with_suffix(".json")
    try:
        values = json.loads(description.read_bytes())
    except OSError as error:
        if not path.exists():
            error.filename = path  # neither file is there
        raise _cannot_read(error) from error
    except ValueError as error:
        raise CheckpointError(f"{description} is not a model configuration: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{description} is not a model configuration: it is no JSON object")
    return values


def weights_file(path: Path) -> Path:
    """Return the file with a checkpoint's tensors. Raises: CheckpointError."""
    return _weights_of(path, _described(path))


def _weights_of(path: Path, values: Mapping[str, Any]) -> Path:
    """The file with a checkpoint's tensors: that of another one in its folder, if its description names one."""
    return path.with_name(f"{values[WEIGHTS_OF]}.safetensors") if WEIGHTS_OF in values else path


def _cannot_read(error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot read {error.filename}: {error.strerror}; {WHAT_MODELS_ARE}")


def does_not_fit(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a file whose tensors do not fit its configuration."""
    reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(f"the weights in {path} do not fit its configuration: {reason}")


def state_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights of a network, by their names in its state."""
    hidden = config.hidden
    products = {"dense": (hidden, hidden), "head": (config.outputs, hidden)}
    products["conv0.product"] = (config.conv_channels, 2 * PAIRS * config.mel_bins)
    products["conv1.product"] = (hidden, 2 * PAIRS * config.conv_channels)
    products |= {f"grus.{i}.{side}": (3 * hidden, hidden) for i in range(config.layers) for side in GRU_SIDES}
    shapes: dict[str, tuple[int, ...]] = {"lookahead.weight": (config.lookahead + 1, hidden)}
    shapes |= {f"features.{name}": (config.mel_bins,) for name in ("mean", "scale")}
    norms = ["norm", *(f"norms.{i}" for i in range(config.layers))]
    shapes |= {f"{norm}.{part}": (hidden,) for norm in norms for part in ("weight", "bias")}
    for module, shape in products.items():
        shapes |= {f"{module}.weight": shape, f"{module}.bias": shape[:1]}
    return shapes


def _numbers(config: ModelConfig, arrays: Arrays) -> QuantizedNetwork:
    """Raises: KeyError or ValueError for tensors that are missing or have other shapes or values."""
    left = dict(arrays)
    expected = state_shapes(config)
    products: dict[str, QuantizedProduct] = {}
    for name, module in products_of(config).items():
        products[name] = take_product(left, module, expected.pop(f"{module}.weight"))
        del expected[f"{module}.bias"]
    must_have_shapes(left, expected)
    return QuantizedNetwork(config, products, {name: array.astype(np.float32) for name, array in left.items()})


def take_product(arrays: dict[str, NDArray[Any]], module: str, shape: tuple[int, ...]) -> QuantizedProduct:
    """Remove a product of `shape` (out, in) from a checkpoint's tensors, and return it.

    Raises: KeyError or ValueError for tensors that are missing or have other shapes or values.
    """
    weight, bias = arrays.pop(f"{module}.weight"), arrays.pop(f"{module}.bias")
    scale = arrays.pop(f"{module}.weight_scale")
    if weight.dtype != np.int8 or int(np.abs(weight.astype(np.int16)).max()) > LARGEST_WEIGHT:
        raise ValueError(f"{module}.weight must be 8-bit integers within ±{LARGEST_WEIGHT}")
    if weight.shape != shape or {bias.shape, scale.shape} != {shape[:1]}:
        raise ValueError(f"{module} must have the shape {shape}, not {weight.shape}")
    input_scale, input_zero = arrays.pop(f"{module}.input_scale"), arrays.pop(f"{module}.input_zero")
    return QuantizedProduct(
        weight=weight,
        scale=scale.astype(np.float32),
        bias=bias.astype(np.float32),
        input_scale=float(input_scale),
        input_zero=int(input_zero),
    )


def must_have_shapes(arrays: Arrays, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check the tensors that are no product's. Raises: ValueError."""
    if {name: array.shape for name, array in arrays.items()} != expected:
        raise ValueError(f"it has {', '.join(sorted(arrays))} and should have {', '.join(sorted(expected))}")
