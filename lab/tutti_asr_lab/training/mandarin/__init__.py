"""Texts and manifests for training Mandarin models."""
