"""Decoding of clients' audio to 16-bit samples."""
