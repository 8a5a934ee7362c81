"""Training of acoustic models: data, augmentation, losses and the training loop."""
