"""Training of acoustic models: data, augmentation, losses and the training loop."""

from model.errors import require

require("torch", "training", "training acoustic models")
