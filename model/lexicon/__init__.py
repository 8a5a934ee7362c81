"""Pronunciations of words: a lexicon file that belongs to a language model, and rules for words that it lacks."""
