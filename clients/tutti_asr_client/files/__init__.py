"""Transcribing files: `tutti transcribe` and what it is made of."""
