"""Training of the shipped model: data, augmentation, loss and the loop. Nothing here runs while serving."""
