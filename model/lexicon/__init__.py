"""Pronunciations of words: a file beside the language model, and rules for the words that it lacks."""
