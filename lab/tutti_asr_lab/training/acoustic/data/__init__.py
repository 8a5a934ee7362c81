"""From recordings to tensors: decoded audio, the list of an epoch, augmented batches. Random draws depend on keys."""
