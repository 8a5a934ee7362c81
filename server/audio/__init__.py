"""Bytes that clients send to 16-bit samples."""
