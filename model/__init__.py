"""Acoustic models, decoding, and all that serving needs of them: audio in, words out."""
