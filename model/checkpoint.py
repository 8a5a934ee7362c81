"""Checkpoints on disk: `NAME.safetensors` with the weights, `NAME.json` with the configuration beside it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from model.config import ModelConfig
from model.errors import CheckpointError
from model.network import Network

WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = WEIGHTS / "tutti-small.safetensors"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def save(network: Network, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write weights and configuration. `dtype` is how the weights are stored; features' statistics stay float32."""
    tensors = {
        name: (t if name.startswith("features.") else t.to(dtype)).contiguous().cpu()
        for name, t in network.state_dict().items()
    }
    config = json.dumps(network.config.to_dict(), indent=1, ensure_ascii=False)
    write_atomically(path.with_suffix(".json"), config.encode() + b"\n")
    write_atomically(path, save_tensors(tensors))


def load(path: Path) -> tuple[Network, str]:
    """Read a checkpoint. Returns the network in float32 and the sha256 of its weights file.

    Raises: CheckpointError naming the file, what is wrong with it, and what to do.
    """
    try:
        blob = path.read_bytes()
        config = ModelConfig.from_dict(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}; `--model` takes a .safetensors file "
            "that has its .json beside it"
        ) from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path.with_suffix('.json')} is not a model configuration: {error}") from error
    network = Network(config)
    try:
        tensors = {name: tensor.to(torch.float32) for name, tensor in load_tensors(blob).items()}
        network.load_state_dict(tensors)
    except Exception as error:  # safetensors raises its own untyped error, torch a RuntimeError
        raise CheckpointError(f"{path} does not hold the weights its configuration describes: {error}") from error
    return network.eval(), hashlib.sha256(blob).hexdigest()
