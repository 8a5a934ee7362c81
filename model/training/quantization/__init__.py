"""Quantising a network: ranges of activations, rounding of weights, fine-tuning, and a simulation to judge them by."""
