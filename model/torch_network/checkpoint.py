"""Weights of a network in torch: reads and writes the checkpoints described in `model.checkpoint`."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as encoded

from model import checkpoint
from model.torch_network.network import Network


def load_network(path: Path) -> tuple[Network, str]:
    """Read a checkpoint. Returns the network in float32 (integers times their scales) and the SHA-256 of its file.

    Raises: CheckpointError naming the file, the error, and what to do.
    """
    config, blob = checkpoint.read_recurrent(path)
    network = Network(config)
    try:
        quantized = checkpoint.quantized_of(config, blob)
        if quantized is None:
            tensors = load_tensors(blob)
        else:
            tensors = {name: torch.from_numpy(array) for name, array in checkpoint.dequantized(quantized).items()}
        network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()})
    except Exception as error:  # safetensors raises an untyped error of its own
        raise checkpoint.does_not_fit(path, error) from error
    return network.eval(), checkpoint.digest_of(blob)


def save_network(network: Network, path: Path) -> None:
    """Write weights and configuration."""
    tensors = {name: tensor.contiguous().cpu() for name, tensor in network.state_dict().items()}
    checkpoint.write(path, network.config, encoded(tensors))
