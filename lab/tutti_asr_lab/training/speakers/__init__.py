"""The network of voices: data, training from another project's vectors, 8 bits, and conversations that measure it."""
