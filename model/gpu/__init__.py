"""Serving on a GPU: states by index in device memory, one captured graph per step, kernels for small batches."""
