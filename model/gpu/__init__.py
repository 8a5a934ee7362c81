"""A step of the network on a GPU: kernels, their host side, and the numerics contract. It knows nothing of batching."""
