"""Figures of a model: error rates, stability of partials, differences between precisions, speed of the bare step."""
