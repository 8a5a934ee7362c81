"""From recordings to tensors: decoded audio, the list of an epoch, augmented batches. All drawn from keys."""
