"""Training of the recurrent language model: word pieces, network, training run, 8-bit weights, tuning."""
