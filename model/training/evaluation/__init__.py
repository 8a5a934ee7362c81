"""Measurements made while a model is developed: beam width, phone errors, speed of matrix products."""
