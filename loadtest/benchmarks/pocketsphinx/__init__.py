"""Comparison with pocketsphinx on the same recordings, with its own language model and with ours."""
