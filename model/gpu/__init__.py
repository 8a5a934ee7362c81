"""Serving on a GPU: states by index in device memory, one captured graph a step, kernels made for small batches."""
