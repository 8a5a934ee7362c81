"""Weights of Moonshine tiny.en for the second pass, from the package that carries them."""
