"""Quantization of published models: scales from recordings, and the comparison with the model in floats."""
