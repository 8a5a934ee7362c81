"""Punctuation and capitals for recognized English words, by a small neural tagger."""
