"""Decoding of transducers: greedy search and beam search with key terms, over frames of the encoder."""
