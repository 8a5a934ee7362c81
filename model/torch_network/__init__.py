"""The network in torch, and the slot model for any torch step function: layers, precisions, slabs, recorded steps."""
