"""A step of the network on a GPU: kernels, their host side, the numerics contract. Nothing here knows of batching."""
