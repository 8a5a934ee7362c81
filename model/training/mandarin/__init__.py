"""Texts and recordings of Mandarin, to make a model of; how transcripts of it are compared."""
