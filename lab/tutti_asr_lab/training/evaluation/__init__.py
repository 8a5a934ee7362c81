"""Measurements during model development: beam width, phone errors, speed of matrix products."""
