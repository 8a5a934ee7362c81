"""Quantising a network: ranges of activations, rounding of weights, fine-tuning, and a simulation to judge them by."""

from model.errors import require

require("torch", "training", "quantizing a network")
