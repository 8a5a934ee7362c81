"""Probe models: published model formats with random weights, so that loaders are proved without a trained model."""

from .making import KINDS, Probe, make_probe

__all__ = ["KINDS", "Probe", "make_probe"]
