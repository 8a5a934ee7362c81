"""Training of the recurrent language model: pieces, network, run, 8-bit weights."""

from model.errors import require

require("torch", "training", "training recurrent language models")
