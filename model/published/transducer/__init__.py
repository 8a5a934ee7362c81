"""Decoder and joiner of published transducers, and their greedy search over frames of the encoder."""
