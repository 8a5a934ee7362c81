"""Training of the recurrent language model: pieces, network, run, 8-bit weights."""
