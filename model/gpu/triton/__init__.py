"""The kernels of a step in Triton, made for small batches, and the step that launches them."""
