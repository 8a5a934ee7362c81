"""Segments of one channel: their begin and end, the words that count, and the text that is sent."""
