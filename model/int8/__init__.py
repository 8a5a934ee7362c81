"""The network in exact 8-bit arithmetic: quantized weights and the compiled step."""
