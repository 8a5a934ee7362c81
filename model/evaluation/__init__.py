"""Evaluation of a model: error rates, stability of partials, differences between precisions, speed of a step."""
