"""Quantizes a recurrent language model to 8 bits.

Usage: `python -m tutti_asr_lab.training.language_model.recurrent.quantize FLOATS …`.

Both matrix products get 7-bit weights with one scale per output, rounded for the least error on the states of a
calibration text; the table of gates gets 8 bits with one scale per column.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from model import checkpoint
from model.errors import ModelError
from model.lm.recurrent.model import RecurrentLanguageModel
from model.lm.text_model import Counts
from model.text.files import read_lines
from tutti_asr_lab.training.language_model.recurrent.network import RecurrentNetwork
from tutti_asr_lab.training.language_model.recurrent.train import load_network, parallel
from tutti_asr_lab.training.quantization.rounding import round_compensated, row_scales

CALIBRATION_STREAMS, CALIBRATION_STEPS = 64, 512


@torch.no_grad()
def quantized(network: RecurrentNetwork, streams: Tensor) -> dict[str, NDArray[Any]]:
    """Arrays of `RecurrentLanguageModel`, calibrated on streams (T, B) of pieces."""
    states = network.states(streams, torch.zeros(streams.shape[1], network.hidden))
    inputs = states.flatten(0, 1).double()  # (T * B, H)
    moments = inputs.T @ inputs / len(inputs)
    arrays: dict[str, NDArray[Any]] = {}
    for name, layer in (("recurrent", network.recurrent), ("head", network.head)):
        weight = layer.weight.double()
        scale = row_scales(weight, moments)
        arrays[name] = round_compensated(weight, scale, moments).numpy().astype(np.int8)
        arrays[f"{name}_scale"] = scale.float().numpy()
        arrays[f"{name}_bias"] = layer.bias.float().numpy()
    rows = network.table.weight
    low, high = rows.amin(0), rows.amax(0)
    middle, step = (low + high) / 2, ((high - low) / 2 / 127).clamp_min(1e-12)
    arrays["table"] = ((rows - middle) / step).round().clamp(-127, 127).numpy().astype(np.int8)
    arrays["table_scale"], arrays["table_bias"] = step.numpy(), middle.numpy()
    return arrays


def main() -> None:
    """Quantize a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floats", type=Path, help="checkpoint written by `train`")
    parser.add_argument("--text", type=Path, required=True, help="calibration text, one sentence per line")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        network, pieces = load_network(options.floats)
        network.eval()
        lines = read_lines(options.text, ValueError)
        streams = parallel(lines, pieces, 1, streams=CALIBRATION_STREAMS)[:CALIBRATION_STEPS]
        arrays = quantized(network, streams)
        described = json.loads(options.floats.with_suffix(".json").read_text(encoding="utf-8"))
        described |= asdict(Counts())  # zeros until `tune` sets them
        checkpoint.write_atomically(options.out, save(arrays))
        checkpoint.write_atomically(options.out.with_suffix(".json"), json.dumps(described, indent=1).encode())
        RecurrentLanguageModel.load(options.out)
    except (OSError, ValueError, ModelError) as error:
        sys.exit(f"error: {error}")
    print(options.out)  # noqa: T201


if __name__ == "__main__":
    main()
