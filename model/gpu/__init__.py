"""The GPU path of our own models: the step's kernels, and the contract on a CPU that they obey."""
