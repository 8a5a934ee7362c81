"""Commas, periods, question marks and capitals for recognised English words: a small tagger and how it is trained."""
