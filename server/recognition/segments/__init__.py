"""Segments of one channel: where they begin and end, which of their words count, and what text is sent."""
