"""Training of the attention network, from the weights of another project's phone recognizer."""
