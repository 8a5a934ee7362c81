"""Training of the recurrent language model: word pieces, network, training run, 8-bit weights, tuning."""

from model.errors import require

require("torch", "training", "training recurrent language models")
