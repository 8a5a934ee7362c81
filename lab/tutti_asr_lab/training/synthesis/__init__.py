"""Synthetic speech for training and for the shipped samples: generated sentences, speech synthesizers, other voices."""
