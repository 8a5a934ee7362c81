"""Clients' bytes to 16-bit samples."""
