"""Quantization of a network: ranges of activations, rounding of weights, and a simulation in torch."""

from model.errors import require

require("torch", "training", "quantizing a network")
