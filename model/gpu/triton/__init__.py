"""Triton kernels of a step for small batches, and the step that launches them."""
