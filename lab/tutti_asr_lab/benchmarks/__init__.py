"""One-off measurements: networks on a GPU, small batches, and words in noise."""
