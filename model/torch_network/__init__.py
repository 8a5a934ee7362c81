"""The network in torch, and any torch step function as a slot model: layers, precisions, slabs, recorded steps."""
