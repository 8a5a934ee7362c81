"""Probe models: published model formats with random weights, to test loaders without a trained model."""

from .making import KINDS, Probe, make_probe

__all__ = ["KINDS", "Probe", "make_probe"]
