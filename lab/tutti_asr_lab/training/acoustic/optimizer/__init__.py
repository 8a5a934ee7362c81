"""From summed gradients to new weights: precision, learning rates, AdamW, and Muon distributed over processes."""
