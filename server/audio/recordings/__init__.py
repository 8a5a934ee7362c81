"""Uploaded recordings: from the bytes of a body to samples, in a process of its own."""
