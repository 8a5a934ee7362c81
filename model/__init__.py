"""Acoustic model: audio in, character log-probabilities out, every carried-over value in a named state."""
